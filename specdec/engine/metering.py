"""What the steps of a run make a device do: copies, passes in graphs and outside of them, padding."""

from collections import Counter
from typing import Any

from specdec.contracts import Oracle
from specdec.transfers import crossings

# Of an oracle's counts, those that add up.
_OF_PASSES = ("passes_in_graphs", "passes_outside", "padded_nodes", "captures")


class Meter:
    """Add up what happens between ``begin`` and ``end``.

    Args:
        oracle: its ``counts`` are read, if it has some, and this thread's copies to and from its device.

    Attributes:
        counts: "uploads" and "downloads" if the oracle is on a device; "passes_in_graphs", "passes_outside",
            "padded_nodes" and "captures" if it counts its passes.
    """

    def __init__(self, oracle: Oracle) -> None:
        passes: Any = getattr(oracle, "counts", None)
        sources: list[tuple[Any, tuple[str, ...]]] = [] if passes is None else [(passes, _OF_PASSES)]
        if oracle.device.type != "cpu":
            sources.append((crossings(oracle.device), ("uploads", "downloads")))
        self._sources = sources
        self._before: dict[str, int] = {}
        self.counts: Counter[str] = Counter()

    def begin(self) -> None:
        """Count from here."""
        if self._sources:
            self._before = self._now()

    def end(self) -> None:
        """Count up to here."""
        if self._sources:
            self.counts.update({name: count - self._before[name] for name, count in self._now().items()})

    def _now(self) -> dict[str, int]:
        return {name: getattr(source, name) for source, names in self._sources for name in names}
