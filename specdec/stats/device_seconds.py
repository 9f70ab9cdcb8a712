"""The seconds of a step by phase, on a device."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, Self


class Mark(Protocol):
    """A place in what a device was asked to do, as ``torch.cuda.Event`` is one."""

    def query(self) -> bool:
        """Return whether the device has come there; nothing waits."""

    def synchronize(self) -> Any:
        """Wait until it has."""

    def elapsed_time(self, other: Self) -> float:
        """Return the milliseconds from here to a later place; the device has come to both."""


@dataclass(frozen=True)
class DeviceSeconds:
    """Seconds of phases on a device: one is over when the device has done what it was asked to do by then.

    The host asks for a pass and goes on, so that by its own clock the pass takes as long as asking for it, and the next
    wait all the rest.

    Args:
        seconds: of the phases, in order; the host's until ``settle``, then the device's.
        marks: before the first phase and after each.
    """

    seconds: dict[str, float]
    marks: Sequence[Mark]

    @property
    def are_over(self) -> bool:
        """Whether the device has come to the last mark, so that ``settle`` waits for nothing."""
        return self.marks[-1].query()

    def settle(self) -> None:
        """Put the device's seconds in the place of the host's, in the same dict.

        They are never more together than the host's: what the device still had to do before the first mark is no part
        of them, and two clocks may run differently.
        """
        self.marks[-1].synchronize()
        taken = [1e-3 * before.elapsed_time(after) for before, after in pairwise(self.marks)]
        wall, spent = sum(self.seconds.values()), sum(taken)
        scale = wall / spent if spent > wall else 1.0
        self.seconds.update({phase: scale * one for phase, one in zip(self.seconds, taken, strict=True)})
