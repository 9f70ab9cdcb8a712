"""The seconds of a step by phase, on the host and on a device."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol, Self


class Clock:
    """Wall seconds between laps, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Book the time since the last lap under ``phase``."""
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now


class Mark(Protocol):
    """A place in what a device was asked to do, as ``torch.cuda.Event`` is one."""

    def query(self) -> bool:
        """Return whether the device has come there; nothing waits."""

    def synchronize(self) -> Any:
        """Wait until it has."""

    def elapsed_time(self, other: Self) -> float:
        """Return the milliseconds from here to a later place; the device has come to both."""


class DeviceClock(Clock):
    """Seconds between laps of a device: a lap is over when the device has done what it was asked to do by then.

    The host asks for a pass and goes on, so that by its own clock the pass takes as long as asking for it, and the next
    wait all the rest.

    Args:
        mark: puts a mark after what the device was asked to do so far.

    Attributes:
        seconds: the host's until ``settle``, then the device's.
    """

    def __init__(self, mark: Callable[[], Mark]) -> None:
        super().__init__()
        self._mark = mark
        self._marks = [mark()]

    def lap(self, phase: str) -> None:
        """Book the time since the last lap under ``phase``."""
        super().lap(phase)
        self._marks.append(self._mark())

    @property
    def is_over(self) -> bool:
        """Whether the device has come to the last lap, so that ``settle`` waits for nothing."""
        return self._marks[-1].query()

    def settle(self) -> None:
        """Put the device's seconds in the place of the host's, in the same dict.

        They are never more together than the host's: what the device still had to do before the first lap is no part
        of them, and two clocks may run differently.
        """
        self._marks[-1].synchronize()
        taken = [1e-3 * before.elapsed_time(after) for before, after in pairwise(self._marks)]
        wall, spent = sum(self.seconds.values()), sum(taken)
        scale = wall / spent if spent > wall else 1.0
        self.seconds.update({phase: scale * one for phase, one in zip(self.seconds, taken, strict=True)})
