"""Time the native pass beside the eager one, ``transformers`` and llama.cpp, on the same weights.

``python -m experiments.bench.oracle`` interleaves all arms of a model in every round of one process and prints tables:
medians with their range, and medians of ratios that are paired by round (lowest .. highest). Torch compiles nothing.
The run fails unless native bits are the same in every pass, and native, eager and ``transformers`` passes give the same
greedy ids in float32 arithmetic. For bfloat16 arithmetic and llama.cpp it prints the share of ids that agree.
llama.cpp is left out if it is not installed: ``pip install 'exactspec[llamacpp]'``.
"""

from collections.abc import Sequence

import torch

from exactspec.ending import as_program
from experiments.bench.oracle import benchmark_parts, benchmark_passes, decoding
from experiments.bench.oracle.benchmark_models import Models
from experiments.bench.oracle.benchmark_parts import PROMPT, BenchOptions, ShapeRounds, problem_of
from experiments.bench.sections import machine
from experiments.harness.options import parse_options
from experiments.harness.rounds import measure
from experiments.harness.thread_check import take_threads
from experiments.peers.with_llama_cpp import missing
from specdec.stats import Table
from specdec.stats.report import Shown, show

PARTS = dict(zip(benchmark_parts.PARTS, (decoding, benchmark_passes), strict=True))


def measure_all(options: BenchOptions) -> list[ShapeRounds]:
    """Measure every shape with every number of threads; the models of one shape are resident at a time."""
    found = []
    for shape in options.shapes:
        models = Models(shape, options.vocab_size, max(benchmark_passes.CONTEXT + 16, PROMPT + options.new_tokens))
        for threads in options.threads:
            torch.set_num_threads(threads)
            arms = [arm for name in options.parts for arm in PARTS[name].arms(models, options)]
            timings = measure(arms, options.rounds, f"{shape}, threads {threads}")
            found.append(ShapeRounds(shape, threads, options, timings))
        models.close()
    return found


def report(options: BenchOptions, found: Sequence[ShapeRounds]) -> list[Shown]:
    """Return all tables."""
    told: list[Shown] = [f"{machine()}; threads {', '.join(map(str, options.threads))}; {options.rounds} rounds."]
    if names := missing():
        told.append(f"llama.cpp: not run, {' and '.join(names)} not installed.")
    for part in (PARTS[name] for name in options.parts):
        told.append(Table(part.TITLE, [row for measured in found for row in part.rows(measured)], part.NOTE))
    return told


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the tables.

    Raises:
        SystemExit: it cannot be done; with the argument and the reason.
    """
    options = parse_options(BenchOptions, __doc__, argv, problem=problem_of)
    take_threads(max(options.threads))
    show(report(options, measure_all(options)))


if __name__ == "__main__":
    as_program(main)
