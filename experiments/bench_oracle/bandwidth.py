"""The share of the memory's bandwidth that a pass of one node reaches.

A plain read of as many bytes is a reduction by torch on the same threads. Several reductions are measured, as none is
the fastest everywhere, and the fastest counts: on the machines tried they differ by a few per cent beyond the caches,
and by more in the last cache, where adding 64-bit integers costs least. No compiled reader beside the shipped
library is needed for that, and a slow reader would only flatter the pass.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from experiments.bench_oracle.models import STORAGES, BenchOptions, Models, cache_bytes, weight_bytes
from experiments.bench_oracle.parts import Goal, Measured, Part, Row, wanted
from experiments.bench_oracle.passes import CONTEXT, name_of, pass_arms
from experiments.bench_oracle.rounds import TimedArm, repeated

READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum of float32": lambda words: words.sum(),
    "sum of int64": lambda words: words.view(torch.int64).sum(),
    "dot of float32": lambda words: torch.dot(words, words),
}
SHARES = {"10m": ("80", "95"), "110m": ("80", "95")}


def bytes_of(models: Models, storage: str) -> int:
    """Return what a pass of one node after ``CONTEXT`` tokens must read: weights, keys and values."""
    return weight_bytes(models.config, storage) + cache_bytes(models.config, CONTEXT)


def _read(reader: Callable[[Tensor], Tensor], words: Tensor, repeats: int) -> tuple[float, None]:
    return repeated(partial(reader, words), repeats), None


def arms(models: Models, options: BenchOptions) -> list[TimedArm]:
    """Return passes of one node, and reads of as many bytes."""
    found = []
    for storage in STORAGES:
        found += pass_arms(models, models.native(storage), f"native {storage}", [1], CONTEXT, options.repeats)
        # Written to, because untouched memory is one page of zeros; and no denormal numbers.
        words = torch.ones(bytes_of(models, storage) // 8 * 2)
        for name, reader in READERS.items():
            found.append(TimedArm(f"read, {storage}, {name}", partial(_read, reader, words, options.repeats)))
    return found


def _fastest(measured: Measured, storage: str) -> str | None:
    return measured.timings.fastest(*(f"read, {storage}, {name}" for name in READERS))


def rows(measured: Measured) -> list[Row]:
    """Return a row per storage."""
    found: list[Row] = []
    for storage in STORAGES:
        name, reader = name_of(f"native {storage}", 1, CONTEXT), _fastest(measured, storage)
        size = bytes_of(measured.models, storage)
        read = None if reader is None else size / measured.timings.spread(reader).median / 1e9
        cells = {"share": measured.ratio(reader, name), "read GB/s": read, "reader": str(reader).split(", ")[-1]}
        found.append({**measured.timed(name, storage=storage, **{"MB a pass": f"{size / 1e6:.1f}"}), **cells})
    return found


def goals(measured: Measured) -> list[Goal]:
    """Return the shares."""
    found = []
    for storage in STORAGES:
        share = measured.ratio(_fastest(measured, storage), name_of(f"native {storage}", 1, CONTEXT))
        what = f"share of bandwidth, 1 node, {storage}, {measured.subject} (%)"
        found += wanted(what, SHARES, measured.subject, share, share=True)
    return found


PART = Part(
    "Share of bandwidth", "shapes", arms, rows, goals,
    f"A pass of one node after {CONTEXT} tokens beside a read of as many bytes (weights, keys and values) by torch on "
    "the same threads; the fastest of its reductions counts.",
)  # fmt: skip
