"""What the steps of a run make a device do: copies, passes in graphs and outside of them, padding, time."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from specdec.contracts import Oracle, declared
from specdec.stats import DeviceSeconds, Mark
from specdec.transfers import crossings

# Of an oracle's counts, those that add up.
_OF_PASSES = ("passes_in_graphs", "passes_outside", "computed_nodes", "padded_nodes", "captures")
_OF_COPIES = ("uploads", "downloads", "idle_seconds")


class Meter:
    """Add up what happens in steps, from the first ``mark`` of each to its ``end``.

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
        self._sources, self._put = sources, marking(oracle.device)
        self._before: dict[str, float] | None = None  # the counts when the step began
        self._marks: list[Mark] = []
        self._phases: list[DeviceSeconds] = []
        self.counts: Counter[str] = Counter()

    def mark(self) -> None:
        """Put a mark between two phases, or before the first; what a step makes the device do counts from there."""
        if self._before is None:
            self._before = self._now()
        if self._put is not None:
            self._marks.append(self._put())

    def end(self, seconds: dict[str, float]) -> None:
        """Count up to here.

        Args:
            seconds: of the step's phases, the host's; the device's take their place when it has come to their end,
                which it has by the step after.
        """
        before, self._before = self._before or {}, None
        self.counts.update({name: count - before[name] for name, count in self._now().items()})
        if self._marks:
            self._phases.append(DeviceSeconds(seconds, self._marks))
            self._marks = []
        while self._phases and self._phases[0].are_over:
            self._phases.pop(0).settle()

    def finish(self) -> dict[str, float]:
        """Return the counts of a run at its end, and settle what phases are left: waits for the device."""
        while self._phases:
            self._phases.pop(0).settle()
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
