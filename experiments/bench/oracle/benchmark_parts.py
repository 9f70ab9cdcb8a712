"""The command line of the benchmark of passes, and what its tables are made of."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from exactspec.parser import positive
from experiments.bench.oracle.benchmark_models import SHAPES
from experiments.harness.options import option
from experiments.harness.rounds import Spread, Timings
from oracles.native import NativeTransformer, NativeUnavailable

PARTS = ("decode", "passes")
PROMPT = 64  # tokens that are decoded after


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_THREADS = tuple(sorted({1, min(2, cores()), cores()}))


@dataclass(frozen=True)
class BenchOptions:
    """What was asked for."""

    parts: tuple[str, ...] = option(PARTS, "what to measure (all)", choices=PARTS)
    shapes: tuple[str, ...] = option(("10m", "110m"), "shapes of the models, with random weights", choices=SHAPES)
    vocab_size: int | None = option(None, "vocabulary size in place of the shapes' own", type=positive)
    threads: tuple[int, ...] = option(_THREADS, "numbers of threads (1, 2 and all cores)")
    rounds: int = option(9, "rounds, in each of which every arm runs once")
    batches: tuple[int, ...] = option((1, 8), "batch sizes of plain decoding")
    new_tokens: int = option(64, "tokens that decoding adds to a prompt")
    repeats: int = option(30, "most passes of a round; their median counts")


def problem_of(options: BenchOptions) -> str | None:
    """Return why a run is impossible; None if it is not."""
    needed, room = PROMPT + options.new_tokens, min(SHAPES[shape].max_context for shape in options.shapes)
    if needed > room:
        return f"--new-tokens: {needed} tokens are needed, and the models' context is {room}"
    if "decode" in options.parts and find_spec("transformers") is None:
        return "--parts decode: transformers is missing; pip install 'exactspec[peer]'"
    try:
        NativeTransformer.check()
    except NativeUnavailable as error:
        return f"there is no native pass to measure here: {error}"
    return None


Row = Mapping[str, Any]


@dataclass(frozen=True)
class ShapeRounds:
    """The rounds of one shape with one number of threads.

    Attributes:
        shape: its name.
        threads: of torch, and of llama.cpp.
        options: of the run.
        timings: what the arms took.
    """

    shape: str
    threads: int
    options: BenchOptions
    timings: Timings

    def time_row(self, name: str, **cells: Any) -> Row:
        """Return a row with the milliseconds of an arm, which begins with threads and shape."""
        spread = self.timings.spread(name)
        span = f"{spread.low * 1e3:.3f} .. {spread.high * 1e3:.3f}"
        first = {"threads": self.threads, "model": self.shape}
        return {**first, **cells, "median ms": f"{spread.median * 1e3:.3f}", "range": span}

    def ratio(self, above: str | None, below: str | None) -> Spread | None:
        """Return the seconds of one arm over another's; None if one did not run."""
        if above is None or below is None or not self.timings.has(above, below):
            return None
        return self.timings.ratio(above, below)
