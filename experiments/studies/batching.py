"""Static against continuous batching, plain and with drafts: speed, latency of a request, time to its first token.

All requests are there at the start. A static batch waits for its last row before the next batch begins; a continuous
one seats the next request as soon as a row is free. Outputs end at a blank line, so they differ in length.
"tau, lock-step" is what the same steps would yield if every row kept only as many tokens as the worst row.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from exactspec.ending import as_program
from exactspec.parser import positive, refusing
from experiments.harness.arguments import add_choice, add_strategies, common_parser
from experiments.harness.arms import PLAIN
from experiments.harness.building import build_named, engine_arms
from experiments.harness.rounds import Round, TimedArm, measure
from experiments.harness.rule_choice import add_sampling, sampling_of
from experiments.harness.study import Plan, Study
from experiments.load.serving import LoadRun, serve
from specdec import Oracle, SamplingParams, SpeculativeDecoder
from specdec.prompts import NamedPrompt
from specdec.requests import Prompt
from specdec.stats import Table
from specdec.stats.report import show

STATIC, CONTINUOUS = "static", "continuous"
STOP = "\n\n"
COLUMNS = {
    "tokens/s": "over all requests: the median of the rounds and their range",
    "latency s, 95 %": "from the start to a request's last token, waiting for a row included; median, 95th percentile",
    "first s": "from the start to its first token, mean",
    "rows in use": "share of the batch's rows, mean over scoring calls",
    "tau": "tokens of a row's step",
    "ids as plain": "ids that are plain decoding's in static batches",
    "ids as static": "of an arm that draws: ids that are its own in static batches",
}


@dataclass(frozen=True)
class ServingOptions:
    """What serving depends on."""

    batch_size: int
    max_new_tokens: int
    seed: int
    sampling: SamplingParams
    stop: tuple[str, ...] = (STOP,)


def serve_all(decoder: SpeculativeDecoder, prompts: Sequence[Prompt], options: ServingOptions, static: bool) -> Round:
    """Decode all prompts, which are there at the start; the round's facts are a ``LoadRun`` of all batches."""
    size = options.batch_size if static else len(prompts)
    runs, began = [], time.perf_counter()
    for start in range(0, len(prompts), size):
        part = prompts[start : start + size]
        asked = options.max_new_tokens, options.sampling
        made = [
            decoder.request(prompt, *asked, (options.seed, number), options.stop or None)
            for number, prompt in enumerate(part, start)
        ]
        runs.append(serve(decoder, made, [0.0] * len(part), options.batch_size, began))
    seconds = time.perf_counter() - began
    requests = tuple(request for run in runs for request in run.requests)
    steps = tuple(step for run in runs for step in run.steps)
    ids = np.full((len(prompts), options.max_new_tokens), -1)
    for row, request in zip(ids, requests, strict=True):
        row[: len(request.tokens)] = request.tokens
    return Round(seconds, ids, LoadRun(requests, steps, runs[0].claim))


def lock_step_tokens(served: LoadRun) -> int:
    """Return the tokens that rows would have kept if each took as many a step as the worst of its step."""
    counts: dict[float, list[int]] = {}
    for request in served.requests:
        for ended, count in zip(request.times, request.counts, strict=True):
            counts.setdefault(ended, []).append(count)
    return sum(len(own) * min(own) for own in counts.values())


def row_of(arm: str, way: str, seconds: Sequence[float], runs: Sequence[LoadRun], batch_size: int) -> dict[str, Any]:
    """Return the table's row of some rounds: what they took, and what they served."""
    last = runs[-1]
    rows, emitted = (sum(getattr(step, name) for step in last.steps) for name in ("rows", "emitted"))
    speeds = [sum(step.emitted for step in run.steps) / one for run, one in zip(runs, seconds, strict=True)]
    latency = np.array([[request.e2el for request in run.requests] for run in runs])
    return {
        "batch": batch_size,
        "arm": arm,
        "batches": way,
        "tokens/s": f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f} .. {max(speeds):,.0f})",
        "latency s": float(np.median(latency)),
        "95 %": float(np.quantile(latency, 0.95)),
        "first s": statistics.fmean(request.ttft for run in runs for request in run.requests),
        "rows in use": f"{rows / len(last.steps) / batch_size:.0%}",
        "tau": emitted / rows,
        "tau, lock-step": lock_step_tokens(last) / rows,
    }


def parse(argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the arguments."""
    parser = common_parser(__doc__, num_prompts=48, max_new_tokens=96, resumes=False)
    add = parser.add_argument
    add("--batch-sizes", type=positive, nargs="+", default=[4, 8, 16], help="rows in flight (4 8 16)")
    add_sampling(parser)
    add("--rounds", type=positive, default=5, help="rounds of every arm, interleaved (%(default)s)")
    add_choice(parser, ("prompt_lookup", "small_transformer"), "prompt_lookup small_transformer")
    add_strategies(parser)
    return vars(parser.parse_args(argv))


def decoders_of(arguments: Mapping[str, Any], oracle: Oracle, size: int) -> dict[str, SpeculativeDecoder]:
    """Return arm -> what decodes batches of one size.

    Raises:
        ValueError: a strategy's options are unusable, or this oracle cannot have it.
    """
    settings = {**arguments, "batch_size": size}
    sources = {PLAIN: None, **build_named(settings, oracle)}
    return {arm.name: arm.decoder for arm in engine_arms(arguments, oracle, sources)}


def rows_of(
    arguments: Mapping[str, Any], prompts: Sequence[NamedPrompt], size: int, decoders: Mapping[str, SpeculativeDecoder]
) -> list[dict[str, Any]]:
    """Return the rows of one batch size: every arm in both ways, in interleaved rounds.

    An arm's ids are compared with plain decoding's; ids that it draws itself, with its own in static batches.

    Raises:
        AssertionError: they differ, and the oracle is ``bitwise``.
    """
    sampling = sampling_of(arguments)
    are_draws = sampling.temperature > 0 and not decoders[PLAIN].rule.coupled
    options = ServingOptions(size, arguments["max_new_tokens"], arguments["seed"], sampling)
    starts = [prompt.start for prompt in prompts]
    keys = [*product(decoders, (STATIC, CONTINUOUS))]
    arms = []
    for name, way in keys:
        same = f"{name if are_draws else PLAIN}, {STATIC}"
        twin = None if f"{name}, {way}" == same else same
        run = partial(serve_all, decoders[name], starts, options, way == STATIC)
        arms.append(TimedArm(f"{name}, {way}", run, twin, strict=decoders[name].oracle.bitwise))
    timings = measure(arms, arguments["rounds"], f"batch {size}")
    return [
        {
            **row_of(name, way, timings.seconds[arm], timings.facts[arm], size),
            "ids as static" if are_draws else "ids as plain": f"{timings.agreement.get(arm, 1):.1%}",
        }
        for (name, way), arm in zip(keys, timings.seconds, strict=True)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    arguments = parse(argv)
    with ExitStack() as stack:
        with refusing("batching"):
            study = Study.open(Plan("batching", arguments), stack)
            prompts = study.fitting
            decoders = {size: decoders_of(arguments, study.oracle, size) for size in arguments["batch_sizes"]}
        rows = [row for size, made in decoders.items() for row in rows_of(arguments, prompts, size, made)]
        study.write("batching.json", {"rows": rows})
        head = f"{study.machine}; {len(prompts)} requests."
        show([Table("Static and continuous batches", rows, head, legend=COLUMNS)])
        return study.tell([])


if __name__ == "__main__":
    as_program(main)
