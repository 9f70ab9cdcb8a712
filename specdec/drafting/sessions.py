"""Sessions without a memory, and the chains of given tokens that most of them draft."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from specdec.contracts import Budget, Context, Draft, DraftSession, FloatArray, IntArray, Randomness, Scores, pad_rows
from specdec.drafting.lengths import LengthSession, depth_limits
from specdec.transfers import HOST


def point_chains(tokens: IntArray, counts: IntArray, confidence: FloatArray | None = None) -> Draft:
    """Return chains of deterministic tokens, on the host.

    Args:
        tokens: ``[B, N]``; columns from ``counts[b]`` on are padding and must hold valid ids.
        counts: ``[B]``, 0..N.
        confidence: ``[B, N]``, or None.
    """
    width = max(counts.tolist(), default=0)
    kept = tokens if width == tokens.shape[1] else tokens[:, :width]
    beliefs = None if confidence is None else torch.from_numpy(confidence[:, :width])
    return Draft(torch.from_numpy(kept), torch.from_numpy(counts), confidence=beliefs)


def list_chains(chains: Sequence[Sequence[int] | IntArray]) -> Draft:
    """Return the chains ``[B, N]`` of deterministic tokens that are given for each of B rows, on the host."""
    return point_chains(pad_rows(chains), np.array([len(ids) for ids in chains], dtype=np.int64))


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
        """Tell the length policy; see ``DraftSession.begin``."""
        self.length.begin(rows)

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """Return what ``draft`` makes within the budget and the policy's limits; see ``DraftSession.propose``."""
        limits = depth_limits(self.length, rows, context.num_committed, budget)
        if not any(limits.tolist()):
            return Draft.empty(len(rows), self.device)
        return self.draft(rows, context, limits, randomness)
