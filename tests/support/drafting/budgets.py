"""Budgets across rows: some look first, and break the condition of ``NodeBudget.take``; some are those of servers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import BoolArray, Draft

A = 0


@dataclass(frozen=True)
class LengthOfBatch:
    """Verify the first tokens of every row, as many as a table has for so many rows.

    Source: vLLM, "Dynamic Speculative Decoding" (``num_speculative_tokens_per_batch_size``), its documentation of 2026.
    """

    table: Sequence[tuple[int, int, int]]  # from so many rows, to so many: so many tokens
    lossless: ClassVar[bool] = True

    def take(self, draft: Draft) -> BoolArray:
        rows = len(draft.num_nodes)
        length = next(length for first, last, length in self.table if first <= rows <= last)
        taken: BoolArray = np.arange(draft.width) < np.minimum(draft.num_nodes.numpy(), length)[:, None]
        return taken


def survivals(draft: Draft, reads_token: bool) -> NDArray[np.float64]:
    """Return ``[B, N]`` products of confidences along chains, each token's own among them; -1 at padding.

    Args:
        draft: drawn chains.
        reads_token: a confidence is the probability of the drawn token; else the largest of its law, which is known
            before the draw, as a confidence head's and a margin of logits are.
    """
    laws = draft.node_laws
    largest = laws.dense().amax(-1)
    confidence = laws.probs_of(draft.tokens) if reads_token else largest
    is_real = np.arange(draft.width) < draft.num_nodes.numpy()[:, None]
    return np.where(is_real, confidence.numpy().cumprod(1), -1.0)


def take_likeliest(survival: NDArray[np.float64], number: int) -> BoolArray:
    """Return ``[B, N]`` of each row the first tokens, as many as it has among the so many best of all."""
    best = np.argsort(-survival, axis=None, kind="stable")[:number]
    counts = np.bincount(best // survival.shape[1], minlength=len(survival)) if survival.size else np.zeros(0, int)
    return (np.arange(survival.shape[1]) < counts[:, None]) & (survival >= 0)


@dataclass(frozen=True)
class TableOfTotals:
    """Verify the tokens that are likeliest to survive, so many a row on average as a table has.

    Source: vLLM, "Dynamic Speculative Decoding" with ``adaptive_verification``, its documentation of 2026.
    """

    length: int
    reads_token: bool
    lossless: ClassVar[bool] = True

    def take(self, draft: Draft) -> BoolArray:
        return take_likeliest(survivals(draft, self.reads_token), len(draft.num_nodes) * self.length)


@dataclass
class MostAccepted:
    """Verify the tokens likeliest to survive, as many as have the largest expected throughput.

    Source: vLLM, "Adaptive Verification" (its documentation and ``AdaptiveVerificationManager``, 2026), DSpark (arXiv
        2607.05147): the number comes from confidences of an earlier step, the choice from those of this step.
    Deviations: survivals of the step before are pooled, instead of kept by request; before the first they are 1. With
        ``is_late`` False the number comes from this step's too: what the appendix of DSpark warns of.
    """

    costs: Sequence[float]  # of a step that verifies 0, 1, 2, ... drafted tokens
    is_late: bool = True
    reads_token: bool = False
    lossless: ClassVar[bool] = True
    earlier: NDArray[np.float64] | None = field(default=None, init=False)

    def forget(self) -> None:
        """Begin another run."""
        self.earlier = None

    def take(self, draft: Draft) -> BoolArray:
        survival = survivals(draft, self.reads_token)
        now = survival[survival >= 0]
        known = now if not self.is_late else np.ones(now.size) if self.earlier is None else self.earlier
        self.earlier = now
        best = np.sort(np.resize(known, now.size) if known.size else np.ones(now.size))[::-1]
        tokens = len(draft.num_nodes) + np.concatenate([[0.0], best.cumsum()])
        return take_likeliest(survival, int((tokens / np.array(self.costs[: len(tokens)])).argmax()))


@dataclass(frozen=True)
class FastestLength:
    """Give each chain the length with the largest throughput, after looking at its first token.

    Source: DSpark (DeepSpec, 2026, arXiv 2607.05147), appendix A.
    """

    first: float = 0.8
    second: tuple[float, float] = (0.9, 0.0)  # after A, after B
    speeds: tuple[float, ...] = (1.0, 0.5, 0.45)  # of passes of 1, 2 and 3 tokens
    lossless: ClassVar[bool] = False

    def take(self, draft: Draft) -> BoolArray:
        taken = np.zeros(tuple(draft.tokens.shape), dtype=np.bool_)
        for row, (tokens, count) in enumerate(zip(draft.tokens.tolist(), draft.num_nodes.tolist(), strict=True)):
            reach = [self.first, self.first * self.second[tokens[0]]][:count]
            throughput = [(1 + sum(reach[:n])) * self.speeds[n] for n in range(count + 1)]
            taken[row, : int(np.argmax(throughput))] = True
        return taken


@dataclass(frozen=True)
class OwnToken:
    """Verify the first node of the row whose own token is believed in most; of equals the lower row's."""

    beliefs: tuple[float, float] = (0.9, 0.2)  # in A, in B
    lossless: ClassVar[bool] = False

    def take(self, draft: Draft) -> BoolArray:
        first = [
            self.beliefs[tokens[0]] if count else -1.0
            for tokens, count in zip(draft.tokens.tolist(), draft.num_nodes.tolist(), strict=True)
        ]
        taken = np.zeros(tuple(draft.tokens.shape), dtype=np.bool_)
        taken[int(np.argmax(first)), 0] = max(first) >= 0
        return taken


@dataclass(frozen=True)
class Crossed:
    """Verify the node of each of two rows if the other row's token is A."""

    lossless: ClassVar[bool] = False

    def take(self, draft: Draft) -> BoolArray:
        taken = np.zeros(tuple(draft.tokens.shape), dtype=np.bool_)
        if (draft.num_nodes > 0).all() and len(taken) == 2:
            taken[:, 0] = draft.tokens[:, 0].numpy()[::-1] == A
        return taken
