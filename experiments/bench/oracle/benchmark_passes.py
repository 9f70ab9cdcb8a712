"""Single passes beside llama.cpp's."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from experiments.bench.oracle.benchmark_models import STORAGES, Models
from experiments.bench.oracle.benchmark_parts import BenchOptions, Row, ShapeRounds
from experiments.bench.oracle.llama_cpp_arm import LlamaCpp
from experiments.harness.rounds import Round, TimedArm, repeat
from specdec import Oracle
from specdec.contracts import IntArray, Want

CONTEXT = 128
WIDTHS = (1, 8, 16)
CHUNK = 128


def name_of(program: str, width: int) -> str:
    """Return an arm's name."""
    return f"pass of {width}, {program}"


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
    """Time llama.cpp's pass; it forgets the scored tokens, untimed.

    Args:
        model: it begins anew.
        ids: ``[n]``, of which the first ``context`` stand and the next ``width`` are scored.
        context, width: numbers of ids.
        repeats: times that it is run.
        every: logits of all nodes; else of the last.
    """
    model.fill(ids[:context])
    score = partial(model.score, ids[context : context + width], every)
    return repeat(score, repeats, partial(model.truncate, context))


def arms(models: Models, options: BenchOptions) -> Iterator[TimedArm]:
    """Yield passes of every width: native, eager, llama.cpp."""
    ids: IntArray = np.random.default_rng(0).integers(models.config.vocab_size, size=CONTEXT + max(WIDTHS))
    ours: dict[str, Oracle] = {f"native {storage}": models.native(storage) for storage in STORAGES}
    for program, oracle in {**ours, "eager float32": models.eager}.items():
        passes = Passes(oracle, ids, CONTEXT)
        for width in WIDTHS:
            yield TimedArm(name_of(program, width), partial(passes.run, width, "all", options.repeats))
    for storage in models.llama_storages:
        other = models.llama_cpp(storage)
        for width in WIDTHS:
            run = partial(llama_pass, other, ids, CONTEXT, width, options.repeats)
            yield TimedArm(name_of(f"llama.cpp {storage}", width), run)


def rows(measured: ShapeRounds) -> Iterator[Row]:
    """Yield a row per program and width."""
    programs = [f"native {s}" for s in STORAGES] + ["eager float32"] + [f"llama.cpp {s}" for s in STORAGES]
    for program in programs:
        for width in WIDTHS:
            name = name_of(program, width)
            if measured.timings.has(name):
                one = measured.ratio(name, name_of(program, 1))
                other = measured.ratio(name_of(f"llama.cpp {program.split()[-1]}", width), name)
                cells = {"over a pass of 1": one, "speed over llama.cpp": other if "llama" not in program else None}
                yield {**measured.time_row(name, program=program, nodes=width), **cells}


TITLE = "Passes beside llama.cpp's"
NOTE = f"Batch 1, after {CONTEXT} tokens, logits of every node; llama.cpp decodes a batch of as many tokens."
