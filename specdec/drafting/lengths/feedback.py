"""How a row's last draft fared, as a length policy can see it."""

from dataclasses import dataclass

import numpy as np

from specdec.contracts import BoolArray, IntArray
from specdec.drafting.lengths.policy import LengthSession


@dataclass(frozen=True)
class Fate:
    """What became of the last draft of each row.

    Attributes:
        known: ``[B]`` bool: False for a new request, and if ids were taken back since.
        drafted: ``[B]`` tokens; a budget or the source may have ended the draft early.
        accepted: ``[B]`` how many of them stand.
    """

    known: BoolArray
    drafted: IntArray
    accepted: IntArray


class Feedback(LengthSession):
    """A session that tells the fate of drafts from how much each row has grown.

    Args:
        num_rows: slots of the run.
    """

    def __init__(self, num_rows: int) -> None:
        self._committed = np.full(num_rows, -1, dtype=np.int64)
        self._drafted = np.zeros(num_rows, dtype=np.int64)

    def begin(self, rows: IntArray) -> None:
        """Forget slots ``rows`` ``[B]``."""
        self._committed[rows] = -1

    def note_counts(self, rows: IntArray, counts: IntArray) -> None:
        """Remember how many tokens, ``counts`` ``[B]``, slots ``rows`` ``[B]`` drafted in this step."""
        self._drafted[rows] = counts

    def settle(self, rows: IntArray, num_committed: IntArray) -> Fate:
        """Return the fate of the drafts of the last step, and begin a new step at ``num_committed`` ``[B]``."""
        growth = num_committed - self._committed[rows]
        drafted = self._drafted[rows]
        # More growth than was drafted is another source's doing, and tells nothing.
        known = (self._committed[rows] >= 0) & (growth > 0) & (growth - 1 <= drafted)
        self._committed[rows] = num_committed
        self._drafted[rows] = 0
        # One token more than was accepted is committed in every step.
        return Fate(known, drafted, np.clip(growth - 1, 0, drafted))
