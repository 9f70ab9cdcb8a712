"""Time the native pass beside the eager one, ``transformers`` and llama.cpp, on the same weights.

``python -m experiments.bench.oracle`` interleaves all arms of a model in every round of one process and prints tables:
medians with their range, and medians of ratios that are paired by round (lowest .. highest). Torch compiles nothing.
Native bits do not depend on the pass, and greedy ids of float32 arithmetic agree between native, eager and
``transformers``, or the run fails; of bfloat16 arithmetic and of llama.cpp the share of ids that agree is printed.
Where llama.cpp is not installed it is left out: ``pip install 'exactspec[llamacpp]'``.
"""

from collections.abc import Sequence

import torch

from experiments.bench.oracle import benchmark_parts, benchmark_passes, costs, decoding, speculation
from experiments.bench.oracle.benchmark_models import Models
from experiments.bench.oracle.benchmark_parts import LONGEST_PROMPT, BenchOptions, Measured, Part, parse
from experiments.bench.oracle.speculation import TARGET, Pair
from experiments.bench.sections import machine
from experiments.harness.rounds import measure, unique
from experiments.harness.thread_check import take_threads
from experiments.peers.with_llama_cpp import missing
from specdec.stats import Table
from specdec.stats.report import Shown, show

_KEPT = (
    decoding.PART, benchmark_passes.BESIDE, speculation.PART, benchmark_passes.BANDWIDTH, benchmark_passes.CURVE,
    benchmark_passes.PREFILL, costs.PART, costs.LEVELS,
)  # fmt: skip
PARTS = dict(zip(benchmark_parts.PARTS, _KEPT, strict=True))
NEEDS_LLAMA_CPP = ("decode", "passes")


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


def _of(part: Part, found: Sequence[Measured]) -> list[Measured]:
    """Return what a part has measured."""
    return [measured for measured in found if (measured.subject == TARGET) == (part.on == "pair")]


def report(options: BenchOptions, found: Sequence[Measured]) -> list[Shown]:
    """Return all tables."""
    told: list[Shown] = [f"{machine()}; threads {', '.join(map(str, options.threads))}; {options.rounds} rounds."]
    if missing() and set(options.parts) & set(NEEDS_LLAMA_CPP):
        told.append(f"llama.cpp: not run, {' and '.join(missing())} not installed.")
    for name in options.parts:
        part = PARTS[name]
        rows = [row for measured in _of(part, found) for row in part.rows(measured)]
        told.append(Table(part.title, rows, part.note))
    return told


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the tables."""
    options = parse(argv, __doc__)
    take_threads(max(options.threads))
    show(report(options, measure_all(options)))


if __name__ == "__main__":
    main()
