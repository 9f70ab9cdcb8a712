"""Sessions without a memory."""

from abc import abstractmethod
from collections.abc import Sequence

import torch

from specdec.contracts import Budget, Context, Draft, DraftSession, IntArray, Randomness, Scores
from specdec.drafting.lengths import LengthSession, depth_limits
from specdec.transfers import HOST


class MemorylessSession(DraftSession):
    """A session whose drafts follow from the context alone: there is nothing to take in, roll back or forget.

    Args:
        length: the run's length policy.
        device: where drafts lie.
    """

    def __init__(self, length: LengthSession, device: torch.device = HOST) -> None:
        self.length = length
        self.device = device

    @abstractmethod
    def draft(self, rows: IntArray, context: Context, limits: IntArray, randomness: Randomness) -> Draft:
        """Return chains of at most ``limits`` ``[B]`` tokens."""

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        self.length.begin(rows)

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        limits = depth_limits(self.length, rows, context.num_committed, budget)
        if not any(limits.tolist()):
            return Draft.empty(len(rows), self.device)
        return self.draft(rows, context, limits, randomness)
