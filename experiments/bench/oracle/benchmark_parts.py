"""The command line of the benchmark of passes, what a part of it is, and what its tables are made of."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from exactspec.parser import positive
from experiments.bench.oracle.benchmark_models import SHAPES
from experiments.harness.options import option, parse_options
from experiments.harness.rounds import Spread, TimedArm, Timings
from oracles.native import NativeTransformer, NativeUnavailable

PARTS = ("decode", "passes", "speculate", "bandwidth", "curve", "prefill", "c", "levels")
NEEDS_TRANSFORMERS = ("decode", "speculate")
LONGEST_PROMPT, PAIR_CONTEXT = 128, 2048


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_THREADS = tuple(sorted({1, min(2, cores()), cores()}))


@dataclass(frozen=True)
class BenchOptions:
    """What was asked for."""

    parts: tuple[str, ...] = option(PARTS, "what to measure (all)", choices=PARTS)
    shapes: tuple[str, ...] = option(("10m", "110m"), "of random weights", choices=SHAPES)
    vocab_size: int | None = option(None, "in place of the shapes' own", type=positive)
    threads: tuple[int, ...] = option(_THREADS, "numbers of threads (1, 2 and all cores)")
    rounds: int = option(9, "in which every arm runs once")
    batches: tuple[int, ...] = option((1, 8), "batch sizes of plain decoding and trees")
    widths: tuple[int, ...] = option((1, 2, 4, 8, 16, 32, 64), "nodes of the width curve")
    contexts: tuple[int, ...] = option((128, 2048), "tokens before its passes")
    new_tokens: int = option(64, "that decoding adds to a prompt")
    num_prompts: int = option(4, "of those shipped, for drafts and c")
    prefill_rows: int = option(512, "tokens of the prefill")
    repeats: int = option(30, "passes a round at most; their median counts")


def parse(argv: Sequence[str] | None, description: str | None) -> BenchOptions:
    """Return what is asked for.

    Raises:
        SystemExit: it cannot be done; with the argument and the reason.
    """
    return parse_options(BenchOptions, description, argv, problem=_problem)


def _problem(options: BenchOptions) -> str | None:
    """Return why a run is impossible; None if it is not."""
    room = min(SHAPES[shape].max_context for shape in options.shapes)
    needed = {
        "--contexts with --widths": (max(options.contexts) + max(options.widths), room),
        "--prefill-rows": (options.prefill_rows, room),
        "--new-tokens": (LONGEST_PROMPT + options.new_tokens, PAIR_CONTEXT),
    }
    for name, (tokens, context) in needed.items():
        if tokens > context:
            return f"{name}: {tokens} tokens are needed, and the models' context is {context}"
    if set(options.parts) & set(NEEDS_TRANSFORMERS) and find_spec("transformers") is None:
        return f"--parts {' '.join(NEEDS_TRANSFORMERS)}: transformers is missing; pip install 'exactspec[peer]'"
    try:
        NativeTransformer.check()
    except NativeUnavailable as error:
        return f"there is no native pass to measure here: {error}"
    return None


Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """The rounds of one subject with one number of threads.

    Attributes:
        subject: name of a shape, or of an embedded checkpoint.
        threads: of torch, and of llama.cpp.
        models: of the subject.
        options: of the run.
        timings: what the arms took.
    """

    subject: str
    threads: int
    models: Any
    options: BenchOptions
    timings: Timings

    def row(self, **cells: Any) -> Row:
        """Return a row of a table that begins with threads and subject."""
        return {"threads": self.threads, "model": self.subject, **cells}

    def time_row(self, name: str, **cells: Any) -> Row:
        """Return a row with the milliseconds of an arm."""
        spread = self.timings.spread(name)
        span = f"{spread.low * 1e3:.3f} .. {spread.high * 1e3:.3f}"
        return self.row(**cells, **{"median ms": f"{spread.median * 1e3:.3f}", "range": span})

    def ratio(self, above: str | None, below: str | None) -> Spread | None:
        """Return the seconds of one arm over another's; None where one did not run."""
        if above is None or below is None or not self.timings.has(above, below):
            return None
        return self.timings.ratio(above, below)


@dataclass(frozen=True)
class Part:
    """A part of the benchmark.

    Attributes:
        title: of its table.
        on: whether it measures the shapes or the embedded pair.
        arms: makes them for a subject's models.
        rows: of its table, for one subject and number of threads.
        note: stands below the title.
    """

    title: str
    on: Literal["shapes", "pair"]
    arms: Callable[[Any, BenchOptions], Iterable[TimedArm]]
    rows: Callable[[Measured], Iterable[Row]]
    note: str = ""
