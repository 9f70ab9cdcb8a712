"""Time the native pass beside the eager one, ``transformers`` and llama.cpp, on the same weights.

``python -m experiments.bench.oracle`` interleaves all arms of a model in every round of one process and prints tables:
medians with their range, and medians of ratios that are paired by round (lowest .. highest). The first table is the
summary. Torch compiles nothing. Native bits do not depend on the pass, and greedy ids of float32 arithmetic agree
between native, eager and ``transformers``, or the run fails; of bfloat16 arithmetic and of llama.cpp the share of ids
that agree is printed. Where llama.cpp is not installed it is left out: ``pip install 'exactspec[llamacpp]'``.
"""

import os
from collections.abc import Sequence
from dataclasses import fields
from importlib.util import find_spec

import torch

from exactspec.parser import Parser
from experiments.bench.oracle import bandwidth, benchmark_passes, costs, decoding, speculation, tree_levels
from experiments.bench.oracle.benchmark_models import SHAPES, BenchOptions, Models
from experiments.bench.oracle.benchmark_parts import Measured, Part, Row
from experiments.bench.oracle.pair import PAIR_CONTEXT, TARGET, Pair
from experiments.bench.oracle.rounds import measure, unique
from experiments.bench.sections import machine
from experiments.harness.arguments import freeze, positive
from experiments.harness.thread_check import warn_of_contention
from experiments.peers.with_llama_cpp import missing
from oracles.native import NativeTransformer, NativeUnavailable
from specdec.stats import Table
from specdec.stats.report import Shown, show

PARTS = {
    "decode": decoding.PART,
    "passes": benchmark_passes.BESIDE,
    "speculate": speculation.PART,
    "bandwidth": bandwidth.PART,
    "curve": benchmark_passes.CURVE,
    "prefill": benchmark_passes.PREFILL,
    "c": costs.PART,
    "levels": tree_levels.PART,
}
NEEDS_TRANSFORMERS = ("decode", "speculate")
NEEDS_LLAMA_CPP = ("decode", "passes")
LONGEST_PROMPT = 128


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse(argv: Sequence[str] | None) -> BenchOptions:
    """Return what is asked for.

    Raises:
        SystemExit: it cannot be done; with the argument and the reason.
    """
    parser = Parser(__doc__)
    add, every = parser.add_argument, sorted({1, min(2, cores()), cores()})
    add("--parts", choices=PARTS, nargs="+", default=list(PARTS), help="what to measure (all)")
    add("--shapes", choices=SHAPES, nargs="+", default=["10m", "110m"], help="of random weights (10m 110m)")
    add("--vocab-size", type=positive, help="in place of the shapes' own")
    add("--threads", type=positive, nargs="+", default=every, help="numbers of threads (1, 2 and all cores)")
    add("--rounds", type=positive, default=9, help="in which every arm runs once (%(default)s)")
    add("--batches", type=positive, nargs="+", default=[1, 8], help="batch sizes of plain decoding and trees (1 8)")
    add("--widths", type=positive, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], help="nodes of the width curve")
    add("--contexts", type=positive, nargs="+", default=[128, 2048], help="tokens before its passes (128 2048)")
    add("--new-tokens", type=positive, default=64, help="that decoding adds to a prompt (%(default)s)")
    add("--num-prompts", type=positive, default=4, help="of those shipped, for drafts and c (%(default)s)")
    add("--prefill-rows", type=positive, default=512, help="tokens of the prefill (%(default)s)")
    add("--repeats", type=positive, default=30, help="passes a round at most; their median counts (%(default)s)")
    values = vars(parser.parse_args(argv))
    options = BenchOptions(**{f.name: freeze(values[f.name]) for f in fields(BenchOptions)})
    if problem := _problem(options):
        parser.error(problem)
    return options


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


def measure_all(options: BenchOptions) -> list[Measured]:
    """Measure every subject with every number of threads; the models of one subject are resident at a time."""
    found = []
    for subject, parts in _subjects(options).items():
        room = max(benchmark_passes.CONTEXT + 16, decoding.PROMPT + options.new_tokens)
        on_pair = subject == TARGET
        models: Models | Pair = (
            Pair(options.num_prompts, LONGEST_PROMPT) if on_pair else Models(subject, options.vocab_size, room)
        )
        for threads in options.threads:
            torch.set_num_threads(threads)
            arms = unique([arm for part in parts for arm in part.arms(models, options)])
            timings = measure(arms, options.rounds, f"{subject}, threads {threads}")
            found.append(Measured(subject, threads, models, options, timings))
        models.close()
    return found


def _subjects(options: BenchOptions) -> dict[str, list[Part]]:
    """Return subject -> the parts that are measured on it."""
    asked = [PARTS[name] for name in PARTS if name in options.parts]
    shapes = {shape: [part for part in asked if part.on == "shapes"] for shape in options.shapes}
    # The pair takes least time and compares most ids: what disagrees ends a run soon.
    subjects = {TARGET: [part for part in asked if part.on == "pair"], **shapes}
    return {subject: parts for subject, parts in subjects.items() if parts}


def summary(options: BenchOptions, found: Sequence[Measured]) -> list[Row]:
    """Return a row per goal, a column per number of threads."""
    lines: dict[str, dict[str, object]] = {}
    empty = {f"threads: {threads}": None for threads in options.threads}
    for part in (PARTS[name] for name in options.parts):
        for measured in _of(part, found):
            for goal in part.goals(measured):
                first: dict[str, object] = {"what": goal.what, "at least": goal.least, "aim": goal.aim, **empty}
                lines.setdefault(goal.what, first)[f"threads: {measured.threads}"] = goal.measured
    return list(lines.values())


def _of(part: Part, found: Sequence[Measured]) -> list[Measured]:
    """Return what a part has measured."""
    return [measured for measured in found if (measured.subject == TARGET) == (part.on == "pair")]


def report(options: BenchOptions, found: Sequence[Measured]) -> list[Shown]:
    """Return all tables."""
    told: list[Shown] = [f"{machine()}; threads {', '.join(map(str, options.threads))}; {options.rounds} rounds."]
    if missing() and set(options.parts) & set(NEEDS_LLAMA_CPP):
        told.append(f"llama.cpp: not run, {' and '.join(missing())} not installed.")
    if goals := summary(options, found):
        told.append(Table("Summary", goals))
    for name in options.parts:
        part = PARTS[name]
        rows = [row for measured in _of(part, found) for row in part.rows(measured)]
        told.append(Table(part.title, rows, part.note))
    return told


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the tables."""
    options = parse(argv)
    torch.set_num_threads(max(options.threads))
    warn_of_contention()
    show(report(options, measure_all(options)))


if __name__ == "__main__":
    main()
