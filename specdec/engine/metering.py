"""What the steps of a run make a device do: copies, passes in graphs and outside of them, padding, time."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from specdec.contracts import Oracle, declared
from specdec.stats import Clock, DeviceClock, Mark
from specdec.transfers import crossings

# Of an oracle's counts, those that add up.
_OF_PASSES = ("passes_in_graphs", "passes_outside", "computed_nodes", "padded_nodes", "captures")
_OF_COPIES = ("uploads", "downloads", "idle_seconds")


class Meter:
    """Add up what happens between ``begin`` and ``end``.

    Args:
        oracle: its ``counts`` are read, if it has some, and this thread's copies to and from its device.

    Attributes:
        counts: "uploads", "downloads" and "idle_seconds" if the oracle is on a device; "passes_in_graphs",
            "passes_outside", "computed_nodes", "padded_nodes" and "captures" if it counts its passes.
    """

    def __init__(self, oracle: Oracle) -> None:
        passes = declared(oracle, "counts")
        sources: list[tuple[Any, tuple[str, ...]]] = [] if passes is None else [(passes, _OF_PASSES)]
        if oracle.device.type != "cpu":
            copies = crossings(oracle.device)
            copies.waited = None  # what lies between two runs is no time of either
            sources.append((copies, _OF_COPIES))
        self._sources, self._mark = sources, marking(oracle.device)
        self._before: dict[str, float] = {}
        self._clocks: list[DeviceClock] = []
        self.counts: Counter[str] = Counter()

    def begin(self) -> Clock:
        """Count from here; return the clock of a step."""
        if self._sources:
            self._before = self._now()
        if self._mark is None:
            return Clock()
        self._clocks.append(DeviceClock(self._mark))
        return self._clocks[-1]

    def end(self) -> None:
        """Count up to here. Clocks are settled as far as the device has come, which it has by the step after."""
        if self._sources:
            self.counts.update({name: count - self._before[name] for name, count in self._now().items()})
        while self._clocks and self._clocks[0].is_over:
            self._clocks.pop(0).settle()

    def finish(self) -> dict[str, float]:
        """Return the counts of a run at its end, and settle what clocks are left: waits for the device."""
        while self._clocks:
            self._clocks.pop(0).settle()
        return dict(self.counts)

    def _now(self) -> dict[str, float]:
        return {name: getattr(source, name) for source, names in self._sources for name in names}


def meter_of(oracle: Oracle) -> Meter | None:
    """Return what meters the steps of an oracle; None: there is nothing to count on the host."""
    return None if oracle.device.type == "cpu" and declared(oracle, "counts") is None else Meter(oracle)


def marking(device: torch.device) -> Callable[[], Mark] | None:
    """Return what puts a mark with a time into what a CUDA device was asked to do; None: there is no such device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None

    def mark() -> Mark:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        return event

    return mark
