"""Draft longer after full acceptance, shorter after a rejection."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from specdec.contracts import IntArray
from specdec.drafting.lengths.feedback import Feedback
from specdec.drafting.lengths.policy import LengthPolicy
from specdec.theory import check_count


@dataclass(frozen=True)
class Heuristic(LengthPolicy):
    """Let each row's length grow by 2 when its whole draft was accepted, and shrink by 1, not below 1, when not.

    A draft that a row's own budget or its source ended early counts by what was drafted: accepted to its end, it was
    accepted in full. A step without a draft leaves the length as it is.

    Args:
        num_draft_tokens: the first length of a request, 1 or more.
        max_draft_tokens: lengths stay within it.

    Raises:
        ValueError: a number out of range or a fraction.

    Guarantee: lossless, as lengths follow from earlier steps; a row's lengths depend on its own request only.
    Cost: O(B) a step on the host; no confidence is read.
    Source: transformers, ``num_assistant_tokens_schedule="heuristic"`` (``AssistedCandidateGenerator``).
    Deviations: there one length serves the whole generation config and, but for "heuristic_transient", outlives the
        call; here every request begins anew. There it is unbounded.
    """

    num_draft_tokens: int = 5
    max_draft_tokens: int = 20

    adaptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("num_draft_tokens", "max_draft_tokens"):
            check_count(name, getattr(self, name), 1)
        if self.num_draft_tokens > self.max_draft_tokens:
            raise ValueError(
                f"need num_draft_tokens <= max_draft_tokens, not num_draft_tokens={self.num_draft_tokens}, "
                f"max_draft_tokens={self.max_draft_tokens}"
            )

    @property
    def max_depth(self) -> int:
        """The longest draft ever asked for: ``max_draft_tokens``."""
        return self.max_draft_tokens

    def next_limits(self, limits: IntArray, drafted: IntArray, accepted: IntArray) -> IntArray:
        """Return ``[B]`` the lengths after drafts of which ``accepted`` tokens stand."""
        moved = np.clip(limits + np.where(accepted == drafted, 2, -1), 1, self.max_draft_tokens)
        return np.where(drafted > 0, moved, limits)

    def open(self, num_rows: int) -> "_Session":
        """Return a session for a run of ``num_rows`` slots."""
        return _Session(self, num_rows)


class _Session(Feedback):
    policy: Heuristic

    def __init__(self, policy: Heuristic, num_rows: int) -> None:
        super().__init__(num_rows)
        self.policy = policy
        self.length = np.zeros(num_rows, dtype=np.int64)

    def begin(self, rows: IntArray) -> None:
        super().begin(rows)
        self.length[rows] = self.policy.num_draft_tokens

    def limits(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        fate = self.settle(rows, num_committed)
        moved = self.policy.next_limits(self.length[rows], fate.drafted, fate.accepted)
        self.length[rows] = np.where(fate.known, moved, self.length[rows])
        return self.length[rows]
