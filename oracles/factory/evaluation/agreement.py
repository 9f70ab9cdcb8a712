"""How far a draft's laws agree with the oracle's, for each token of a text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from oracles.factory.evaluation.continuations import Continuation
from oracles.factory.evaluation.loops import loop_mask

# Positions in a pass; texts of equal shape share one.
TOKENS_AT_ONCE = 4096

# Ids [B, T] -> logits [B, T, V] of the next id after every prefix.
Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Agreement:
    """Sums over tokens that measure how far a draft agrees with the oracle.

    Attributes:
        num_tokens: number of positions.
        same_best: positions at which both have the same likeliest id. A greedy drafted token is accepted there, if the
            draft so far agrees with the text.
        overlap: sum of Σ min(p, q), the same for draws at temperature 1.
    """

    num_tokens: int = 0
    same_best: float = 0.0
    overlap: float = 0.0

    @property
    def share_same(self) -> float | None:
        """Return the share of positions with the same likeliest id; None without any position."""
        return self.same_best / self.num_tokens if self.num_tokens else None

    @property
    def mean_overlap(self) -> float | None:
        """Return the mean of Σ min(p, q) over positions; None without any."""
        return self.overlap / self.num_tokens if self.num_tokens else None

    @staticmethod
    def between(taught: Tensor, logits: Tensor) -> "Agreement":
        """Return the sums for logits ``[..., V]`` of the oracle and of the draft."""
        target, draft = (x.double().flatten(0, -2).log_softmax(-1) for x in (taught, logits))
        same = (target.argmax(-1) == draft.argmax(-1)).sum().item()
        overlap = torch.minimum(target, draft).exp().sum().item()
        return Agreement(len(target), same, overlap)

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Agreements:
    """The agreement on all new tokens, and on those outside loops."""

    all: Agreement = Agreement()
    unlooped: Agreement = Agreement()

    def __add__(self, other: "Agreements") -> "Agreements":
        return Agreements(self.all + other.all, self.unlooped + other.unlooped)


@torch.no_grad()
def compare(
    oracle: Logits, drafts: Mapping[str, Logits], texts: Sequence[Continuation], device: torch.device
) -> dict[str, Agreements]:
    """Return how far each draft agrees with the oracle on the new tokens of texts, each after the true text before it.

    Args:
        oracle: its logits.
        drafts: name -> logits.
        texts: what is read; only loops within the new tokens count.
        device: of the ids given to oracle and drafts.

    Cost: one pass of the oracle and of each draft over every text.
    """
    total = {name: Agreements() for name in drafts}
    for num_prompt, rows in _batches(texts):
        ids, new = rows[:, :-1].to(device), slice(num_prompt - 1, None)
        is_free = torch.from_numpy(np.stack([~loop_mask(row) for row in rows[:, num_prompt:].numpy()])).to(device)
        taught = oracle(ids)[:, new]
        for name, draft in drafts.items():
            logits = draft(ids)[:, new]
            unlooped = Agreement.between(taught[is_free], logits[is_free])
            total[name] += Agreements(Agreement.between(taught, logits), unlooped)
    return total


def _batches(texts: Sequence[Continuation]) -> Iterator[tuple[int, Tensor]]:
    """Yield the prompts' length and the texts ``[B, T]`` of one shape, at most ``TOKENS_AT_ONCE`` tokens at once."""

    def shape(text: Continuation) -> tuple[int, int]:
        return len(text.prompt), len(text.new)

    for (num_prompt, num_new), group in groupby(sorted((t for t in texts if t.new), key=shape), key=shape):
        rows = torch.tensor([text.prompt + text.new for text in group])
        for part in torch.split(rows, max(1, TOKENS_AT_ONCE // (num_prompt + num_new))):
            yield num_prompt, part
