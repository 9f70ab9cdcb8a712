"""What the steps of a run make a device do: copies, passes in graphs and outside of them, padding, time."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol, Self

import torch

from specdec.contracts import PHASES, Oracle, capability_of
from specdec.transfers import crossings


class Mark(Protocol):
    """A place in a device's queue of work, such as a ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Return, without waiting, whether the device has reached it."""

    def synchronize(self) -> Any:
        """Wait until the device has reached it."""

    def elapsed_time(self, other: Self) -> float:
        """Return the milliseconds from here to a later place; the device has reached both."""


def settle(seconds: dict[str, float], marks: Sequence[Mark]) -> None:
    """Replace the host's seconds of phases by the device's, in the same dict; waits for the last mark.

    A phase is over when the device has done all that it was asked to do by then. The host asks for a pass and goes on:
    by its clock the pass takes only as long as asking for it, and the next wait takes all the rest. The sum is never
    more than the host's: work that the device still had before the first mark does not count, and two clocks may run
    differently.

    Args:
        seconds: of each phase.
        marks: before the first phase, after each, and after the source has taken in what was emitted.
    """
    marks[-1].synchronize()
    taken = [1e-3 * before.elapsed_time(after) for before, after in pairwise(marks)]
    wall, spent = sum(seconds.values()), sum(taken)
    scale = wall / spent if spent > wall else 1.0
    seconds.update(dict(zip(PHASES, (scale * one for one in (taken[0] + taken[4], *taken[1:4])), strict=True)))


# The counts of an oracle that are summed.
_OF_PASSES = ("passes_in_graphs", "passes_outside", "computed_nodes", "padded_nodes", "captures")
_OF_COPIES = ("uploads", "downloads", "idle_seconds")


class Meter:
    """Add up what happens in steps, from the first ``mark`` of each to its ``end``.

    Args:
        sources: the objects whose counts are read, each with the names of these counts.
        put: puts a mark into a device's queue of work; None: there is no such device.

    Attributes:
        counts: the sums, by the names of the counts.
    """

    def __init__(self, sources: Sequence[tuple[Any, Sequence[str]]], put: Callable[[], Mark] | None) -> None:
        self._sources, self._put = sources, put
        self._before: dict[str, float] | None = None  # the counts when the step began
        self._marks: list[Mark] = []
        self._phases: list[tuple[dict[str, float], list[Mark]]] = []  # that the host has timed
        self.counts: Counter[str] = Counter()

    def mark(self) -> None:
        """Put a mark before the first phase, or between two; a step's work on the device counts from the first mark."""
        if self._before is None:
            self._before = self._now()
        if self._put is not None:
            self._marks.append(self._put())

    def end(self, seconds: dict[str, float]) -> None:
        """Count up to here.

        Args:
            seconds: of the step's phases, by the host's clock; the device's replace them once it has reached their end,
                which it has by the step after.
        """
        before, self._before = self._before or {}, None
        self.counts.update({name: count - before[name] for name, count in self._now().items()})
        if self._marks:
            self._phases.append((seconds, self._marks))
            self._marks = []
        while self._phases and self._phases[0][1][-1].query():
            settle(*self._phases.pop(0))

    def finish(self) -> dict[str, float]:
        """Return the counts of a run at its end, and settle the phases that are left, which waits for the device."""
        while self._phases:
            settle(*self._phases.pop(0))
        return dict(self.counts)

    def _now(self) -> dict[str, float]:
        return {name: getattr(source, name) for source, names in self._sources for name in names}


def meter_of(oracle: Oracle) -> Meter | None:
    """Return the meter of an oracle's steps; None: the oracle is on the host and counts no passes.

    Its counts are "uploads", "downloads" and "idle_seconds", of this thread's copies to and from the oracle's device if
    that is not the host; "passes_in_graphs", "passes_outside", "computed_nodes", "padded_nodes" and "captures" if the
    oracle counts its passes.
    """
    passes = capability_of(oracle, "counts")
    sources: list[tuple[Any, Sequence[str]]] = [] if passes is None else [(passes, _OF_PASSES)]
    if oracle.device.type != "cpu":
        copies = crossings(oracle.device)
        copies.waited = None  # the time between two runs belongs to neither
        sources.append((copies, _OF_COPIES))
    return Meter(sources, marking(oracle.device)) if sources else None


def marking(device: torch.device) -> Callable[[], Mark] | None:
    """Return what puts a timed mark into a CUDA device's queue of work; None: the device is not one of CUDA."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None

    def mark() -> Mark:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        return event

    return mark
