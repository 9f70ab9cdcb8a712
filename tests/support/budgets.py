"""Budgets across rows that look first: each breaks the condition of ``NodeBudget.take`` in its own way."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from specdec.contracts import BoolArray, Draft

A = 0


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
