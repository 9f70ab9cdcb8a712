"""Tables of passes beside what the machine allows."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from experiments.limits.limit_timing import Passes
from experiments.limits.machine import measure_bandwidth
from specdec.theory.limits import ModelShape, best_draft_length, break_even_width

Row = Mapping[str, Any]
READ_MB = (1, 4, 16, 64, 256)
# A pass this much longer than one of a single node still counts as free.
FREE = 1.1

MACHINE_NOTE = (
    "Read: the fastest of torch's reductions over as many bytes, again and again, so that what fits into the caches is "
    "read from there. Products: of square matrices, by the fastest of torch's ways to multiply them. The fastest round "
    "counts."
)
PASSES_NOTE = (
    "A chain of so many nodes in each row, logits of all. Bound by: memory if reading the bytes takes longer than the "
    "FLOPs, at the rates measured in this run. Least: the longer of the two. Share: the least time over the measured "
    "one, the part of the roofline that the pass reaches."
)
WIDTH_NOTE = (
    "Break-even: the width from which on the roofline is bound by computing; below it more nodes are free in theory. "
    f"Free: the widest measured pass that takes at most {FREE} times one of a single node. Ridge: FLOPs a byte at "
    "which reading and computing take the same time."
)
CONTEXT_NOTE = "Share of cache: keys and values among the bytes of a pass of one node. v: over a pass of one node."
GAINS_NOTE = (
    "Expected tokens a step over v(k + 1) + k draft cost, the best k in brackets; v as measured, and as the roofline "
    "alone would have it. Acceptance is taken to be the same at every position, and drafting the same share of a pass."
)


def machine_rows(flops: Mapping[torch.dtype, float], rounds: int) -> list[Row]:
    """Return a row per size that is read and dtype that is multiplied."""
    reads = [{"what": f"read {mb} MB", "GB/s": measure_bandwidth(mb * 1e6, rounds) / 1e9, "GFLOP/s": None}
             for mb in READ_MB]  # fmt: skip
    return [*reads, *({"what": f"products, {str(dtype).removeprefix('torch.')}", "GB/s": None, "GFLOP/s": rate / 1e9}
                      for dtype, rate in flops.items())]  # fmt: skip


def pass_rows(groups: Sequence[Passes]) -> list[Row]:
    """Return a row per batch size, context and width."""
    found: list[Row] = []
    for group in groups:
        for width, cost in group.costs.items():
            seconds, roofline = group.seconds[width], group.roofline
            found.append({
                "batch": group.batch,
                "context": group.context,
                "width": width,
                "MFLOP": cost.flops / 1e6,
                "MB": cost.bytes / 1e6,
                "FLOP/byte": cost.intensity,
                "bound by": "memory" if roofline.is_memory_bound(cost) else "computing",
                "least ms": roofline.seconds(cost) * 1e3,
                "ms": seconds.median * 1e3,
                "range": f"{seconds.low * 1e3:.3f} .. {seconds.high * 1e3:.3f}",
                "share": f"{roofline.share(cost, seconds.median):.0%}",
            })  # fmt: skip
    return found


def width_rows(shape: ModelShape, groups: Sequence[Passes]) -> list[Row]:
    """Return a row per batch size and context."""
    found: list[Row] = []
    for group in groups:
        one = group.seconds[1].median
        free = max(width for width, seconds in group.seconds.items() if seconds.median <= FREE * one)
        found.append({
            "batch": group.batch,
            "context": group.context,
            "read GB/s": group.roofline.bytes_per_second / 1e9,
            "ridge": group.roofline.ridge,
            "break-even": break_even_width(group.roofline, shape, group.batch, group.context),
            "free": free,
        })  # fmt: skip
    return found


def context_rows(groups: Sequence[Passes]) -> list[Row]:
    """Return a row per batch size and context: times of the narrowest and the other passes, and what they read."""
    found: list[Row] = []
    for group in groups:
        cost = group.costs[1]
        over = {f"v({width})": group.curves["measured"](width) for width in group.seconds if width > 1}
        found.append({
            "batch": group.batch,
            "context": group.context,
            "weights MB": cost.weight_bytes / 1e6,
            "cache MB": cost.cache_bytes / 1e6,
            "share of cache": f"{cost.cache_share:.0%}",
            "ms, 1 node": group.seconds[1].median * 1e3,
            **over,
        })  # fmt: skip
    return found


def gain_rows(groups: Sequence[Passes], alphas: Sequence[float], draft_cost: float) -> list[Row]:
    """Return two rows per batch size and context: gains of the best draft length by measured times, and by least ones.

    Draft lengths end where the widest pass does.
    """
    found: list[Row] = []
    for group in groups:
        longest = max(group.seconds) - 1
        for times, curve in group.curves.items():
            bests = {alpha: best_draft_length(alpha, curve, draft_cost, longest) for alpha in alphas}
            cells = {f"alpha {alpha}": f"{best.gain:.2f} ({best.length})" for alpha, best in bests.items()}
            found.append({"batch": group.batch, "context": group.context, "v": times, **cells})
    return found
