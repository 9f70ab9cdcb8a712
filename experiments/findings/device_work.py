"""What an arm's steps made a device do: copies, waits, passes in graphs and outside of them, padding, idle time."""

from dataclasses import dataclass
from typing import Any

from experiments.harness.run_outcome import Outcome
from specdec.stats import Stats

DEVICE_NOTE = (
    "Of a step. eager passes, and those of transformers, copy and wait by themselves too, which nobody counts."
)
DEVICE = {
    "copies up, copies down": "to the device and back, of a drafting model's too",
    "waits": "times that the host waited, by copies back and by captures of graphs",
    "idle ms, idle": "from the end of a wait to the next copy, in milliseconds and as a share of decoding (the device "
    "is idle at least so long: gaps between the operations of a pass are not seen)",
    "passes": "of the oracle, prompts left out",
    "in graphs": "the share of these that were replays of a graph",
    "captures": "in all",
    "padding": "the share of the nodes computed that stood for none, up to the widest row or to the shape of a graph",
}
DEVICE_BRIEF = ("arm", "waits", "idle", "in graphs", "padding")


@dataclass(frozen=True)
class DeviceWork:
    """What a step made a device do, on average; None where that was not counted.

    Attributes:
        uploads, downloads: copies there and back.
        waits: of the host.
        idle_seconds: with nothing to do, at least.
        idle: the same as a share of decoding, prefill left out.
        passes: of the oracle.
        in_graphs: share of these.
        captures: graphs made in the whole run.
        padding: share of the nodes computed.
    """

    uploads: float | None = None
    downloads: float | None = None
    waits: float | None = None
    idle_seconds: float | None = None
    idle: float | None = None
    passes: float | None = None
    in_graphs: float | None = None
    captures: float | None = None
    padding: float | None = None

    @staticmethod
    def of(stats: Stats, nodes: int | None = None) -> "DeviceWork | None":
        """Return it; None if nothing was counted.

        Args:
            stats: of an arm.
            nodes: that its scoring calls had, of all rows, each as wide as the widest; None: nobody knows.
        """
        counts, steps = stats.device, max(stats.target_calls, 1)
        if not counts:
            return None
        found: dict[str, float] = {}
        passes = counts.get("passes_in_graphs", 0) + counts.get("passes_outside", 0)
        if passes:
            in_graphs = counts["passes_in_graphs"] / passes
            found |= {"passes": passes / steps, "in_graphs": in_graphs, "captures": counts["captures"]}
        if "uploads" in counts:
            waits = (counts["downloads"] + counts.get("captures", 0)) / steps
            decoding = stats.total_seconds - stats.seconds.get("prefill", 0.0)
            found |= {"uploads": counts["uploads"] / steps, "downloads": counts["downloads"] / steps, "waits": waits}
            if "idle_seconds" in counts:  # earlier versions did not count it
                found |= {"idle_seconds": counts["idle_seconds"] / steps, "idle": counts["idle_seconds"] / decoding}
        if nodes is not None:
            ragged = nodes - stats.num_drafted - stats.num_scouts - stats.num_steps
            padded = counts.get("padded_nodes", 0)
            found["padding"] = (padded + ragged) / counts.get("computed_nodes", nodes + padded)
        return DeviceWork(**found)


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.0%}"


def device_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """Return what a step of each arm of ours made the device do, if that was counted."""
    rows = []
    for arm in outcome.arms:
        stats = outcome.stats(arm)
        work = None if stats is None else DeviceWork.of(stats, outcome.num_scored_nodes(arm))
        if work is not None:
            idle = None if work.idle_seconds is None else 1e3 * work.idle_seconds
            rows.append(
                {
                    "arm": arm,
                    "copies up": work.uploads,
                    "copies down": work.downloads,
                    "waits": work.waits,
                    "idle ms": idle,
                    "idle": _share(work.idle),
                    "passes": work.passes,
                    "in graphs": _share(work.in_graphs),
                    "captures": work.captures,
                    "padding": _share(work.padding),
                }
            )
    return rows
