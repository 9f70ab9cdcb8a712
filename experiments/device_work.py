"""What an arm made a device do, as a table and in words: copies, passes in graphs and outside of them, padding."""

from typing import Any

from experiments.outcome import Outcome
from specdec.stats import Stats

DEVICE = (
    "Of a step: copies to the device and back, of a drafting model's too, and passes of the oracle (prompts are left "
    "out); the share of these that were replays of a graph, graphs captured, and nodes of padding in a pass. The host "
    "waits for each copy back."
)


def device_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """Return what a step of each arm of ours made the device do, if that was counted."""
    rows = []
    for arm in outcome.arms:
        stats = outcome.stats(arm)
        if stats is None or not (counts := stats.device):
            continue
        steps, passes = stats.target_calls, counts.get("passes_in_graphs", 0) + counts.get("passes_outside", 0)
        rows.append(
            {
                "arm": arm,
                "copies up": counts["uploads"] / steps if "uploads" in counts else None,
                "copies down": counts["downloads"] / steps if "downloads" in counts else None,
                "passes": passes / steps if passes else None,
                "in graphs": f"{counts['passes_in_graphs'] / passes:.0%}" if passes else None,
                "captures": counts.get("captures"),
                "padded nodes": counts["padded_nodes"] / passes if passes else None,
            }
        )
    return rows


def device_reasons(stats: Stats) -> list[str]:
    """Return what kept a device waiting, as far as it was counted."""
    counts, steps = stats.device, max(stats.target_calls, 1)
    if "uploads" not in counts:
        return []
    inside, outside = counts.get("passes_in_graphs", 0), counts.get("passes_outside", 0)
    told = []
    if outside > 0.05 * (inside + outside):
        share = f"{outside / (inside + outside):.0%} of its passes ran outside of graphs"
        told.append(f"{share} ({counts['captures']} captures): such a pass pays for starting every operation.")
    up, down = counts["uploads"] / steps, counts["downloads"] / steps
    if up > 1.05 or down > 1.05:
        told.append(f"A step made {up:.1f} copies to the device and {down:.1f} back; the host waits for each of these.")
    return told
