"""The share of the memory's bandwidth that a pass of one node reaches.

A plain read of as many bytes is a reduction by torch on the same threads. Several reductions are measured, as none is
the fastest everywhere, and the fastest counts: on the machines tried they differ by a few per cent beyond the caches,
and by more in the last cache, where adding 64-bit integers costs least. No compiled reader beside the shipped
library is needed for that, and a slow reader would only flatter the pass.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from experiments.bench.oracle.benchmark_models import STORAGES, Models, cache_bytes, weight_bytes
from experiments.bench.oracle.benchmark_parts import BenchOptions, Goal, Measured, Part, Row, goals_of
from experiments.bench.oracle.benchmark_passes import CONTEXT, name_of, pass_arms
from experiments.bench.oracle.rounds import TimedArm, median_seconds

READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum of float32": lambda words: words.sum(),
    "sum of int64": lambda words: words.view(torch.int64).sum(),
    "dot of float32": lambda words: torch.dot(words, words),
}
SHARES = {"10m": ("80", "95"), "110m": ("80", "95")}


LONG = {"10m": ("at most 1.25", ""), "110m": ("at most 1.25", "")}


def bytes_of(models: Models, storage: str, context: int) -> int:
    """Return what a pass of one node must read after so many tokens: weights, keys and values."""
    return weight_bytes(models.config, storage) + cache_bytes(models.config, context)


def contexts_of(options: BenchOptions) -> tuple[int, int]:
    """Return a short context, whose share is a goal, and the longest of the run."""
    return CONTEXT, max(options.contexts)


def _reading(reader: str, storage: str, context: int) -> str:
    return f"read, {storage} after {context}, {reader}"


def _read(reader: Callable[[Tensor], Tensor], words: Tensor, repeats: int) -> tuple[float, None]:
    return median_seconds(partial(reader, words), repeats), None


def arms(models: Models, options: BenchOptions) -> Iterator[TimedArm]:
    """Yield passes of one node, and reads of as many bytes."""
    for storage, context in product(STORAGES, contexts_of(options)):
        yield from pass_arms(models, models.native(storage), f"native {storage}", [1], context, options.repeats)
        # Written to, because untouched memory is one page of zeros; and no denormal numbers.
        words = torch.ones(bytes_of(models, storage, context) // 8 * 2)
        for name, reader in READERS.items():
            yield TimedArm(_reading(name, storage, context), partial(_read, reader, words, options.repeats))


def _fastest(measured: Measured, storage: str, context: int) -> str | None:
    return measured.timings.fastest(*(_reading(name, storage, context) for name in READERS))


def rows(measured: Measured) -> Iterator[Row]:
    """Yield a row per storage and context."""
    for storage, context in product(STORAGES, contexts_of(measured.options)):
        name, reader = name_of(f"native {storage}", 1, context), _fastest(measured, storage, context)
        size = bytes_of(measured.models, storage, context)
        read = None if reader is None else size / measured.timings.spread(reader).median / 1e9
        cells = {"share": measured.ratio(reader, name), "read GB/s": read, "reader": str(reader).split(", ")[-1]}
        sized = measured.time_row(name, storage=storage, context=context, **{"MB a pass": f"{size / 1e6:.1f}"})
        yield {**sized, **cells}


def goals(measured: Measured) -> Iterator[Goal]:
    """Yield the shares, and the time of a pass after a long context over that of reading."""
    for storage in STORAGES:
        share = measured.ratio(_fastest(measured, storage, CONTEXT), name_of(f"native {storage}", 1, CONTEXT))
        what = f"share of bandwidth, 1 node, {storage}, {measured.subject} (%)"
        yield from goals_of(what, SHARES, measured.subject, share, share=True)
    long = contexts_of(measured.options)[1]
    for storage in STORAGES:
        over = measured.ratio(name_of(f"native {storage}", 1, long), _fastest(measured, storage, long))
        what = f"a pass of 1 node after {long} tokens over reading as many bytes, {storage}, {measured.subject}"
        yield from goals_of(what, LONG, measured.subject, over)


PART = Part(
    "Share of bandwidth", "shapes", arms, rows, goals,
    "A pass of one node beside a read of as many bytes (weights, keys and values) by torch on the same threads; the "
    "fastest of its reductions counts.",
)  # fmt: skip
