"""Single passes: beside llama.cpp's, by width and context, of a prompt, and their share of the memory's bandwidth."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from experiments.bench.oracle.benchmark_models import STORAGES, Models, shape_in
from experiments.bench.oracle.benchmark_parts import BenchOptions, Measured, Part, Row
from experiments.bench.oracle.llama_cpp_arm import LlamaCpp
from experiments.harness.rounds import Round, TimedArm, repeat
from specdec import Oracle
from specdec.contracts import IntArray, Want
from specdec.theory.limits import pass_cost

CONTEXT = 128
WIDTHS_BESIDE_LLAMA_CPP = (1, 8, 16)
CHUNK = 128


def name_of(program: str, width: int, context: int) -> str:
    """Return an arm's name."""
    return f"pass of {width} after {context}, {program}"


def some_ids(models: Models, count: int) -> IntArray:
    """Return ``[count]`` ids, always the same."""
    return np.random.default_rng(0).integers(models.config.vocab_size, size=count)


class Passes:
    """Passes of one oracle after a context that is in the cache, batch 1; nothing is committed.

    Args:
        oracle: scores.
        ids: ``[context + widest]``.
        context: ids to put into the cache.
    """

    def __init__(self, oracle: Oracle, ids: IntArray, context: int) -> None:
        self._oracle, self._ids, self._context = oracle, torch.from_numpy(ids)[None], context
        self._rows, self._cache = np.arange(1), oracle.new_cache(1, len(ids))
        for start in range(0, context, CHUNK):
            chunk = self._ids[:, start : min(start + CHUNK, context)]
            oracle.score(chunk, None, torch.tensor([chunk.shape[1]]), self._cache, self._rows, "none")
            self._cache.commit(self._rows, None, np.array([chunk.shape[1]]))

    def run(self, width: int, want: Want, repeats: int) -> Round:
        """Time a pass of so many nodes."""
        tokens, nodes = self._ids[:, self._context : self._context + width], torch.tensor([width])
        return repeat(partial(self._oracle.score, tokens, None, nodes, self._cache, self._rows, want), repeats)


def llama_pass(model: LlamaCpp, ids: IntArray, context: int, width: int, repeats: int, every: bool = True) -> Round:
    """Time llama.cpp's pass, with logits of all nodes or of the last; it forgets them, untimed."""
    model.fill(ids[:context])
    score = partial(model.score, ids[context : context + width], every)
    return repeat(score, repeats, partial(model.truncate, context))


def pass_arms(
    models: Models, oracle: Oracle, program: str, widths: list[int], context: int, repeats: int
) -> list[TimedArm]:
    """Return the passes of an oracle after one context."""
    passes = Passes(oracle, some_ids(models, context + max(widths, default=1)), context)
    return [TimedArm(name_of(program, w, context), partial(passes.run, w, "all", repeats)) for w in widths]


def beside_arms(models: Models, options: BenchOptions) -> Iterator[TimedArm]:
    """Yield passes of 1, 8 and 16 nodes: native, eager, llama.cpp."""
    widths, repeats = list(WIDTHS_BESIDE_LLAMA_CPP), options.repeats
    for storage in STORAGES:
        yield from pass_arms(models, models.native(storage), f"native {storage}", widths, CONTEXT, repeats)
    yield from pass_arms(models, models.eager, "eager float32", widths, CONTEXT, repeats)
    ids = some_ids(models, CONTEXT + max(widths))
    for storage in models.llama_storages:
        other = models.llama_cpp(storage)
        for width in widths:
            run = partial(llama_pass, other, ids, CONTEXT, width, repeats)
            yield TimedArm(name_of(f"llama.cpp {storage}", width, CONTEXT), run)


def beside_rows(measured: Measured) -> Iterator[Row]:
    """Yield a row per program and width."""
    programs = [f"native {s}" for s in STORAGES] + ["eager float32"] + [f"llama.cpp {s}" for s in STORAGES]
    for program in programs:
        for width in WIDTHS_BESIDE_LLAMA_CPP:
            name = name_of(program, width, CONTEXT)
            if measured.timings.has(name):
                one = measured.ratio(name, name_of(program, 1, CONTEXT))
                other = measured.ratio(name_of(f"llama.cpp {program.split()[-1]}", width, CONTEXT), name)
                cells = {"over a pass of 1": one, "speed over llama.cpp": other if "llama" not in program else None}
                yield {**measured.time_row(name, program=program, nodes=width), **cells}


def curve_arms(models: Models, options: BenchOptions) -> Iterator[TimedArm]:
    """Yield native passes of every width, storage and context."""
    for context in options.contexts:
        for storage in STORAGES:
            oracle, program = models.native(storage), f"native {storage}"
            yield from pass_arms(models, oracle, program, list(options.widths), context, options.repeats)


def curve_rows(measured: Measured) -> Iterator[Row]:
    """Yield a row per storage and context: milliseconds, over a pass of the smallest width, by width."""
    widths = measured.options.widths
    for context in measured.options.contexts:
        for storage in STORAGES:
            names = {width: name_of(f"native {storage}", width, context) for width in widths}
            cells = {}
            for width, name in names.items():
                over = measured.timings.ratio(name, names[min(widths)]).median
                cells[f"{width}"] = f"{measured.timings.spread(name).median * 1e3:.3f} ({over:.2f})"
            yield measured.row(storage=storage, context=context, **cells)


def prefill_arms(models: Models, options: BenchOptions) -> list[TimedArm]:
    """Return one pass of many rows into an empty cache, native and eager."""
    rows = options.prefill_rows
    ids, repeats = some_ids(models, rows), min(options.repeats, 5)
    oracles: dict[str, Oracle] = {f"native {storage}": models.native(storage) for storage in STORAGES}
    oracles["eager float32"] = models.eager
    return [
        TimedArm(f"prefill, {program}", partial(Passes(oracle, ids, 0).run, rows, "last", repeats))
        for program, oracle in oracles.items()
    ]


def prefill_rows(measured: Measured) -> Iterator[Row]:
    """Yield a row per program."""
    for program in (*(f"native {storage}" for storage in STORAGES), "eager float32"):
        name = f"prefill, {program}"
        over = measured.ratio(name, "prefill, eager float32")
        rows = measured.options.prefill_rows
        yield {**measured.time_row(name, program=program, rows=rows), "over eager": over}


BESIDE = Part(
    "Passes beside llama.cpp's", "shapes", beside_arms, beside_rows,
    f"Batch 1, after {CONTEXT} tokens, logits of every node; llama.cpp decodes a batch of as many tokens.",
)  # fmt: skip
CURVE = Part(
    "The width curve", "shapes", curve_arms, curve_rows,
    "Milliseconds of a pass by its number of nodes, batch 1, and over the narrowest pass.",
)  # fmt: skip
PREFILL = Part(
    "Prefill", "shapes", prefill_arms, prefill_rows,
    "One pass of many rows into an empty cache, logits of the last.",
)  # fmt: skip


# Plain reads of as many bytes, reductions by torch on the same threads. None is the fastest everywhere, so the fastest
# counts: on the machines tried they differ by a few per cent beyond the caches, and by more in the last cache, where
# adding 64-bit integers costs least. No compiled reader beside the shipped library is needed, and a slow reader
# would only flatter the pass.
READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum of float32": lambda words: words.sum(),
    "sum of int64": lambda words: words.view(torch.int64).sum(),
    "dot of float32": lambda words: torch.dot(words, words),
}


def bytes_of(models: Models, storage: str, context: int) -> int:
    """Return what a pass of one node must read after so many tokens: weights, keys and values."""
    return int(pass_cost(shape_in(models.config, storage), context=context).bytes)


def contexts_of(options: BenchOptions) -> tuple[int, int]:
    """Return a short context, and the longest of the run."""
    return CONTEXT, max(options.contexts)


def _reading(reader: str, storage: str, context: int) -> str:
    return f"read, {storage} after {context}, {reader}"


def read_arms(models: Models, options: BenchOptions) -> Iterator[TimedArm]:
    """Yield passes of one node, and reads of as many bytes."""
    for storage, context in product(STORAGES, contexts_of(options)):
        yield from pass_arms(models, models.native(storage), f"native {storage}", [1], context, options.repeats)
        # Written to, because untouched memory is one page of zeros; and no denormal numbers.
        words = torch.ones(bytes_of(models, storage, context) // 8 * 2)
        for name, reader in READERS.items():
            yield TimedArm(_reading(name, storage, context), partial(repeat, partial(reader, words), options.repeats))


def _fastest_read(measured: Measured, storage: str, context: int) -> str | None:
    return measured.timings.fastest(*(_reading(name, storage, context) for name in READERS))


def read_rows(measured: Measured) -> Iterator[Row]:
    """Yield a row per storage and context."""
    for storage, context in product(STORAGES, contexts_of(measured.options)):
        name, reader = name_of(f"native {storage}", 1, context), _fastest_read(measured, storage, context)
        size = bytes_of(measured.models, storage, context)
        read = None if reader is None else size / measured.timings.spread(reader).median / 1e9
        cells = {"share": measured.ratio(reader, name), "read GB/s": read, "reader": str(reader).split(", ")[-1]}
        sized = measured.time_row(name, storage=storage, context=context, **{"MB a pass": f"{size / 1e6:.1f}"})
        yield {**sized, **cells}


BANDWIDTH = Part(
    "Share of bandwidth", "shapes", read_arms, read_rows,
    "A pass of one node beside a read of as many bytes (weights, keys and values) by torch on the same threads; the "
    "fastest of its reductions counts.",
)  # fmt: skip
