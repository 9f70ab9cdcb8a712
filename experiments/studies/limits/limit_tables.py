"""Tables and pictures of the limits: what is counted, passes beside what the machine allows, and long sequences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.studies.limits.limit_options import LimitOptions
from experiments.studies.limits.limit_timing import LimitPasses, Prefill, measure_bandwidth
from specdec.stats.report import Panel, panels
from specdec.theory.limits import (
    ModelShape,
    Roofline,
    attention_work_cached,
    attention_work_naive,
    break_even_width,
    context_of_equal_bytes,
    kv_cache_bytes,
    prefill_costs,
)

Row = Mapping[str, Any]
# Prompt and new tokens of the embedded arithmetic checkpoint, the short end; then new tokens after each context.
SHORT, NEW = (9, 19), 64

CACHE_NOTE = (
    "Bytes of keys and values that a row must keep, by the heads that have them (MHA: each its own; GQA: some share; "
    "MQA: all share) and with a sliding window. Equal at: the context from which a pass of one row reads more bytes "
    "of these than of weights."
)
ATTENTION_NOTE = (
    "Millions of FLOPs of attention (scores and weighted sum, a multiply-add is two), linear layers left out. Naive: "
    "each pass computes all queries again and meets all keys. Cached: one query a pass; the prompt's other "
    "queries count in the last columns only."
)


def attention_kinds(shape: ModelShape, window: int) -> dict[str, ModelShape]:
    """Return name -> the model with these key and value heads; the model's own kind and its window among them."""
    plain = replace(shape, window=None)
    shared = [heads for heads in range(2, shape.num_heads) if shape.num_heads % heads == 0]
    counts = {"MHA": shape.num_heads, "MQA": 1}
    if shared:
        counts["GQA"] = shape.num_kv_heads if shape.num_kv_heads in shared else shared[0]
    kinds = {
        f"{name}, {_heads(counts[name])}": replace(plain, num_kv_heads=counts[name])
        for name in ("MHA", "GQA", "MQA")
        if name in counts
    }
    window = window if shape.window is None else shape.window
    return {**kinds, f"{_heads(shape.num_kv_heads)}, window {window}": replace(shape, window=window)}


def _heads(count: int) -> str:
    return f"{count} KV head{'' if count == 1 else 's'}"


def cache_rows(shape: ModelShape, contexts: Sequence[int], window: int) -> Iterator[Row]:
    """Return a row per kind of attention and bytes of a cached number."""
    for name, kind in attention_kinds(shape, window).items():
        for size in (4, 2):
            stored = replace(kind, bytes_per_cached=size)
            sizes = {f"MB at {context}": kv_cache_bytes(stored, context) / 1e6 for context in contexts}
            own = (stored.num_kv_heads, stored.window, size) == (
                shape.num_kv_heads, shape.window, shape.bytes_per_cached
            )  # fmt: skip
            equal = context_of_equal_bytes(stored)
            yield {
                "kind": name,
                "bytes a number": size,
                "this model": "yes" if own else "",
                "KB a token": stored.cache_bytes_per_token / 1e3,
                **sizes,
                "equal at": None if equal is None else round(equal),
            }  # fmt: skip


def attention_rows(shape: ModelShape, contexts: Sequence[int]) -> Iterator[Row]:
    """Return a row per prompt length: a layer, the model, and with the prompt's own queries."""
    for prompt, generated in (SHORT, *((context, NEW) for context in contexts)):
        sizes = prompt, generated, shape.attention_width
        naive, cached = attention_work_naive(*sizes), attention_work_cached(*sizes)
        whole = attention_work_cached(*sizes, with_prefill=True)
        yield {
            "prompt": prompt,
            "new": generated,
            "naive, a layer": f"{naive / 1e6:,.2f}",
            "cached, a layer": f"{cached / 1e6:,.2f}",
            "ratio": f"{naive / cached:,.2f}",
            f"naive, {shape.num_layers} layers": f"{naive * shape.num_layers / 1e6:,.2f}",
            f"cached, {shape.num_layers} layers": f"{cached * shape.num_layers / 1e6:,.2f}",
            "cached and prefill, a layer": f"{whole / 1e6:,.2f}",
            "its ratio": f"{naive / whole:,.2f}",
        }  # fmt: skip


READ_MB = (1, 4, 16, 64, 256)
# A pass this much longer than one of a single node still counts as free.
FREE = 1.1

MACHINE_NOTE = (
    "Read: the fastest of torch's reductions over that many bytes, repeated, so that what fits into the caches is read "
    "from there. Products: of square matrices, by the fastest of torch's ways to multiply them. The fastest round "
    "counts."
)
PASSES_NOTE = (
    "Each row has a chain of that many nodes, with logits of all. Bound by: memory if reading the bytes takes longer "
    "than the FLOPs, at the rates measured in this run. Least: the longer of the two. Share: the least time over the "
    "measured one, the part of the roofline that the pass reaches."
)
WIDTH_NOTE = (
    "Break-even: the width from which the roofline is bound by computing; below it more nodes are free in theory. "
    f"Free: the widest measured pass that takes at most {FREE} times one of a single node. Ridge: FLOPs a byte at "
    "which reading and computing take the same time."
)
CONTEXT_NOTE = (
    "Share of cache: keys and values among the bytes of a pass of one node. v: time of a pass over that of one node's."
)
GAINS_NOTE = (
    "Expected tokens a step over v(k + 1) + k draft cost, the best k in brackets; v as measured, and by the roofline "
    "alone. Acceptance is taken to be the same at every position, and drafting a token the same share of a pass."
)


def machine_rows(flops: Mapping[torch.dtype, float], rounds: int) -> list[Row]:
    """Return a row per size that is read and dtype that is multiplied."""
    reads = [{"what": f"read {mb} MB", "GB/s": measure_bandwidth(mb * 1e6, rounds) / 1e9, "GFLOP/s": None}
             for mb in READ_MB]  # fmt: skip
    return [*reads, *({"what": f"products, {str(dtype).removeprefix('torch.')}", "GB/s": None, "GFLOP/s": rate / 1e9}
                      for dtype, rate in flops.items())]  # fmt: skip


def pass_rows(groups: Sequence[LimitPasses]) -> Iterator[Row]:
    """Return a row per batch size, context and width."""
    for group in groups:
        for width, cost in group.costs.items():
            seconds, roofline = group.seconds[width], group.roofline
            yield {
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
            }  # fmt: skip


def width_rows(shape: ModelShape, groups: Sequence[LimitPasses]) -> Iterator[Row]:
    """Return a row per batch size and context."""
    for group in groups:
        one = group.seconds[1].median
        free = max(width for width, seconds in group.seconds.items() if seconds.median <= FREE * one)
        yield {
            "batch": group.batch,
            "context": group.context,
            "read GB/s": group.roofline.bytes_per_second / 1e9,
            "ridge": group.roofline.ridge,
            "break-even": break_even_width(group.roofline, shape, group.batch, group.context),
            "free": free,
        }  # fmt: skip


def context_rows(groups: Sequence[LimitPasses]) -> Iterator[Row]:
    """Return a row per batch size and context: times of the narrowest and the other passes, and what they read."""
    for group in groups:
        cost = group.costs[1]
        over = {f"v({width})": group.curves["measured"](width) for width in group.seconds if width > 1}
        yield {
            "batch": group.batch,
            "context": group.context,
            "weights MB": cost.weight_bytes / 1e6,
            "cache MB": cost.cache_bytes / 1e6,
            "share of cache": f"{cost.cache_share:.0%}",
            "ms, 1 node": group.seconds[1].median * 1e3,
            **over,
        }  # fmt: skip


def gain_rows(groups: Sequence[LimitPasses], alphas: Sequence[float], draft_cost: float) -> Iterator[Row]:
    """Return two rows per batch size and context: gains of the best draft length, by measured and by least times."""
    for group in groups:
        for times in group.curves:
            bests = {alpha: group.best_draft(times, alpha, draft_cost) for alpha in alphas}
            cells = {f"alpha {alpha}": f"{best.gain:.2f} ({best.length})" for alpha, best in bests.items()}
            yield {"batch": group.batch, "context": group.context, "v": times, **cells}


WINDOW_NOTE = (
    "The same sizes with a sliding window, random weights (a GGUF file: its own), the smallest batch. Cache MB: "
    "what a pass reads; our caches keep what the window has left behind, so a window saves time here, not memory."
)
PREFILL_NOTE = (
    "One prompt in passes of that many tokens, logits of the last one. MB: read by all passes together. Longest pass: "
    "how long a row that decodes beside it would wait. Share: the least time over the measured one, at the bandwidth "
    "of a pass after the shortest context."
)


def window_rows(plain: Sequence[LimitPasses], windowed: Sequence[LimitPasses], width: int) -> Iterator[Row]:
    """Return a row per context: passes of one node and of ``width``, without and with the window."""
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
        yield row


def prefill_rows(
    kinds: Mapping[str, tuple[ModelShape, Sequence[Prefill]]], length: int, roofline: Roofline
) -> Iterator[Row]:
    """Return a row per kind of attention and size of chunks.

    Args:
        kinds: name -> the model's sizes, and the times of each size of chunks.
        length: tokens of the prompt.
        roofline: of the machine.
    """
    for name, (shape, times) in kinds.items():
        for prefill in times:
            costs = prefill_costs(shape, length, prefill.chunk)
            least = sum(roofline.seconds(cost) for cost in costs)
            yield {
                "attention": name,
                "chunk": prefill.chunk,
                "passes": len(costs),
                "GFLOP": sum(cost.flops for cost in costs) / 1e9,
                "MB": sum(cost.bytes for cost in costs) / 1e6,
                "seconds": prefill.seconds.median,
                "tokens/s": length / prefill.seconds.median,
                "longest pass ms": prefill.longest.median * 1e3,
                "share": f"{least / prefill.seconds.median:.0%}",
            }  # fmt: skip


def draw_roofline(path: Path, groups: Sequence[LimitPasses]) -> None:
    """Write a PNG: of each batch size after its shortest and longest context, the roof and the measured passes."""
    lines, dots = {}, {}
    for group in _ends(groups):
        name, roofline = f"batch {group.batch} after {group.context:,}", group.roofline
        reached = {w: cost.flops / group.seconds[w].median / 1e9 for w, cost in group.costs.items()}
        dots[name] = [(cost.intensity, reached[width]) for width, cost in group.costs.items()]
        ends = [roofline.ridge / 8, *(cost.intensity for cost in group.costs.values()), roofline.ridge * 8]
        across = np.geomspace(min(ends), max(ends), 200)
        lines[name] = [(float(x), roofline.attainable(float(x)) / 1e9) for x in across]
    panels(path, [Panel("FLOPs a byte (a dot for each width)", "GFLOP/s; the line is the roof", lines, dots)])


def _ends(groups: Sequence[LimitPasses]) -> list[LimitPasses]:
    """Return the groups of the shortest and the longest context, of each batch size."""
    contexts = {group.context for group in groups}
    return [group for group in groups if group.context in (min(contexts), max(contexts))]


def draw_contexts(
    path: Path,
    groups: Sequence[LimitPasses],
    windowed: Sequence[LimitPasses],
    options: LimitOptions,
) -> None:
    """Write a PNG of one batch size: times of passes by context and gains; lines are what the roofline allows.

    Args:
        path: of the file.
        groups: passes by context.
        windowed: the same with a sliding window.
        options: name the wide passes that are drawn, acceptance rates, and the cost of a draft token.
    """
    width, alphas, cost = options.wide, options.alphas, options.draft_cost
    lines, dots = {}, {}
    for kind, passes in (("", groups), (", windowed", windowed)):
        for nodes in dict.fromkeys((1, width)):
            name = f"width {nodes}{kind}"
            dots[name] = [(group.context, group.seconds[nodes].median * 1e3) for group in passes]
            lines[name] = [(group.context, group.roofline.seconds(group.costs[nodes]) * 1e3) for group in passes]
    times = Panel("tokens in the cache", "ms a pass (lines: the least by the roofline)", lines, dots)
    measured, least = (
        {
            f"alpha {alpha}": [(one.context, one.best_draft(kind, alpha, cost).gain) for one in groups]
            for alpha in alphas
        }
        for kind in ("measured", "roofline")
    )
    label = "gain of the best draft length (lines: by the roofline)"
    panels(path, [times, Panel("tokens in the cache", label, least, measured, log_up=False)])
