"""Tables of long sequences: what a sliding window and chunks of a prompt change."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.limits.limit_timing import Passes, Prefill
from specdec.theory.limits import ModelShape, Roofline, prefill_costs

Row = Mapping[str, Any]

WINDOW_NOTE = (
    "The same sizes with a sliding window, the smallest batch, random weights. Cache MB: what a pass reads; our caches "
    "keep what the window has left behind, so a window saves time here, not memory."
)
PREFILL_NOTE = (
    "One prompt in passes of so many tokens, logits of the last one. MB: read by all passes together. Longest pass: "
    "how long a row that decodes beside it would wait. Share: the least time over the measured one, at the bandwidth "
    "of a pass after the shortest context."
)


def window_rows(plain: Sequence[Passes], windowed: Sequence[Passes], width: int) -> list[Row]:
    """Return a row per context: passes of one node and of ``width``, without and with the window."""
    found: list[Row] = []
    for full, cut in zip(plain, windowed, strict=True):
        row: dict[str, Any] = {
            "context": full.context,
            "cache MB": full.costs[1].cache_bytes / 1e6,
            "with window": cut.costs[1].cache_bytes / 1e6,
        }
        for nodes in dict.fromkeys((1, width)):
            times = full.seconds[nodes], cut.seconds[nodes]
            row[f"ms, width {nodes}"] = times[0].median * 1e3
            row[f"windowed ms, width {nodes}"] = times[1].median * 1e3
            row[f"faster, width {nodes}"] = times[0].median / times[1].median
        found.append(row)
    return found


def prefill_rows(
    kinds: Mapping[str, tuple[ModelShape, Sequence[Prefill]]], length: int, roofline: Roofline
) -> list[Row]:
    """Return a row per kind of attention and size of chunks.

    Args:
        kinds: name -> the model's sizes, and the times of each size of chunks.
        length: tokens of the prompt.
        roofline: of the machine.
    """
    found: list[Row] = []
    for name, (shape, times) in kinds.items():
        for prefill in times:
            costs = prefill_costs(shape, length, prefill.chunk)
            least = sum(roofline.seconds(cost) for cost in costs)
            found.append({
                "attention": name,
                "chunk": prefill.chunk,
                "passes": len(costs),
                "GFLOP": sum(cost.flops for cost in costs) / 1e9,
                "MB": sum(cost.bytes for cost in costs) / 1e6,
                "seconds": prefill.seconds.median,
                "tokens/s": length / prefill.seconds.median,
                "longest pass ms": prefill.longest.median * 1e3,
                "share": f"{least / prefill.seconds.median:.0%}",
            })  # fmt: skip
    return found
