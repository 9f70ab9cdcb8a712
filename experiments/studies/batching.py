"""Static against continuous batching, plain and with drafts: speed, latency of a request, time to its first token.

All requests are there at the start. A static batch waits for its last row before the next batch begins; a continuous
one seats the next request as soon as a row is free. Outputs end at a blank line, so they differ in length.
"tau, lock-step" is what the same steps would yield if every row kept only as many tokens as the worst row.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from exactspec.ending import as_program
from exactspec.parser import positive, refusing
from experiments.harness.arguments import add_choice, add_strategies, common_parser
from experiments.harness.arms import PLAIN
from experiments.harness.building import build_shared, engine_arms
from experiments.harness.rounds import Round, TimedArm, measure
from experiments.harness.rule_choice import add_sampling, sampling_of
from experiments.harness.study import Plan, Study
from specdec import Oracle, SamplingParams, SpeculativeDecoder
from specdec.contracts import IntArray
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


@dataclass
class ServingRun:
    """What serving all requests once showed.

    Attributes:
        seconds: of the whole.
        latency, first: seconds from the start to the last and to the first token of every request.
        calls, rows: scoring calls, and the rows in flight in them, summed.
        emitted, worst: tokens; and those that lock-step would have kept.
        tokens: of every request, in their order.
    """

    seconds: float = 0.0
    latency: dict[int, float] = field(default_factory=dict)
    first: dict[int, float] = field(default_factory=dict)
    calls: int = 0
    rows: int = 0
    emitted: int = 0
    worst: int = 0
    tokens: list[list[int]] = field(default_factory=list)


def serve(
    decoder: SpeculativeDecoder, prompts: Sequence[Prompt], options: "ServingOptions", static: bool
) -> ServingRun:
    """Decode all prompts and return what that showed."""
    served, size = ServingRun(), options.batch_size
    batches = range(0, len(prompts), size) if static else (0,)
    began = time.perf_counter()
    for start in batches:
        part = prompts[start : start + size] if static else prompts
        seeds = [(options.seed, start + number) for number in range(len(part))]
        state = decoder.start(part, options.max_new_tokens, options.sampling, seeds, list(options.stop) or None, size)
        while state.has_work:
            state, info = decoder.step(state)
            _note(served, info.requests + start, info.num_emitted, time.perf_counter() - began)
        served.tokens += decoder.finish(state).tokens
    served.seconds = time.perf_counter() - began
    return served


def _note(served: ServingRun, requests: IntArray, emitted: IntArray, elapsed: float) -> None:
    """Record a step."""
    served.calls += 1
    served.rows += len(requests)
    served.emitted += int(emitted.sum())
    served.worst += len(requests) * int(emitted.min())
    for request in requests.tolist():
        served.first.setdefault(request, elapsed)
        served.latency[request] = elapsed  # that of its last step stands


@dataclass(frozen=True)
class ServingOptions:
    """What serving depends on."""

    batch_size: int
    max_new_tokens: int
    seed: int
    sampling: SamplingParams
    stop: tuple[str, ...] = (STOP,)


def row_of(arm: str, way: str, runs: Sequence[ServingRun], options: ServingOptions) -> dict[str, Any]:
    """Return the table's row of some rounds."""
    last = runs[-1]
    speeds = [run.emitted / run.seconds for run in runs]
    latency = np.array([list(run.latency.values()) for run in runs])
    return {
        "batch": options.batch_size,
        "arm": arm,
        "batches": way,
        "tokens/s": f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f} .. {max(speeds):,.0f})",
        "latency s": float(np.median(latency)),
        "95 %": float(np.quantile(latency, 0.95)),
        "first s": statistics.fmean(second for run in runs for second in run.first.values()),
        "rows in use": f"{last.rows / last.calls / options.batch_size:.0%}",
        "tau": last.emitted / last.rows,
        "tau, lock-step": last.worst / last.rows,
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
    built = {name: build_shared(name, settings, oracle) for name in arguments["strategies"]}
    return {arm.name: arm.decoder for arm in engine_arms(arguments, oracle, {PLAIN: None, **built})}


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
        run = partial(_time, decoders[name], starts, options, way)
        arms.append(TimedArm(f"{name}, {way}", run, twin, strict=decoders[name].oracle.bitwise))
    timings = measure(arms, arguments["rounds"], f"batch {size}")
    return [
        {
            **row_of(name, way, timings.facts[f"{name}, {way}"], options),
            "ids as static" if are_draws else "ids as plain": f"{timings.agreement.get(f'{name}, {way}', 1):.1%}",
        }
        for name, way in keys
    ]


def _time(decoder: SpeculativeDecoder, starts: Sequence[Prompt], options: ServingOptions, way: str) -> Round:
    served = serve(decoder, starts, options, way == STATIC)
    ids = np.full((len(starts), options.max_new_tokens), -1)
    for row, tokens in zip(ids, served.tokens, strict=True):
        row[: len(tokens)] = tokens
    return Round(served.seconds, ids, served)


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
        print(f"\nWritten: {study.folder}")
    return 0


if __name__ == "__main__":
    as_program(main)
