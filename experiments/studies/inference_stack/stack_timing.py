"""The gate, the clock, the roofline: an arm that writes other ids than the first one has failed, however fast it is."""

import statistics
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from experiments.harness.findings.model_shapes import bytes_per_weight, model_shape
from experiments.harness.rounds import Round, Spread, TimedArm, measure, wait_for
from experiments.studies.inference_stack.stack_arms import Generate
from experiments.studies.inference_stack.study_frame import Finding, Results, StudyOptions
from experiments.studies.inference_stack.subjects import Subject
from experiments.studies.limits.limit_timing import measure_bandwidth, measure_flops
from specdec.theory.limits import Roofline, pass_cost


def write_ids(generate: Generate, subject: Subject, batch: int, num_prompts: int, title: str) -> Tensor:
    """Return ``[num_prompts, num_new]`` ids that an arm writes after the first prompts of the gate.

    All batches are full: the last one is filled up with the first prompts.

    Raises:
        ValueError: the arm returns ids of another shape.
    """
    found = []
    for first in tqdm(range(0, num_prompts, batch), desc=title, leave=False):
        at = torch.arange(first, first + batch) % num_prompts
        ids = generation(generate, subject.gate[at], subject.device)[0]
        if ids.shape != (batch, subject.num_new):
            raise ValueError(f"the arm returned ids of shape {tuple(ids.shape)}, not {(batch, subject.num_new)}")
        found.append(ids)
    return torch.cat(found)[:num_prompts]


def judge(ids: Tensor, wanted: Tensor, answers: Tensor | None) -> Finding:
    """Return how many rows of ids ``[G, N]`` equal the first wanted ones, and how many answers are right.

    Returns:
        "prompts", "same", and "exact" (None if nobody knows the answers).
    """
    count = len(ids)
    exact = None if answers is None else int((ids == answers[:count]).all(1).sum())
    return {"prompts": count, "same": int((ids == wanted[:count]).all(1).sum()), "exact": exact}


def generation(generate: Generate, prompts: Tensor, device: torch.device) -> tuple[Tensor, float, float]:
    """Return the ids ``[B, num_new]`` that an arm writes, on the host, and two times.

    Args:
        generate: of the arm.
        prompts: ``[B, P]`` ids.
        device: of the arm.

    Returns:
        The ids, the seconds until the first of them were there, and until all were.
    """
    first: list[float] = []

    def mark() -> None:
        if not first:
            wait_for(device)
            first.append(time.perf_counter())

    began = time.perf_counter()
    with torch.inference_mode():
        ids = generate(prompts.to(device), mark).cpu()
    ended = time.perf_counter()
    return ids, first[0] - began, ended - began


def batches_of(prompts: Tensor, batch: int) -> Iterator[Tensor]:
    """Yield ``[batch, P]`` prompts without end, starting over when no whole batch is left."""
    count = max(len(prompts) // batch, 1)
    while True:
        for number in range(count):
            at = torch.arange(number * batch, (number + 1) * batch) % len(prompts)
            yield prompts[at]


def _time(generate: Generate, prompts: Iterator[Tensor], device: torch.device, least: float) -> Round:
    """Return the mean time of generations repeated for so many seconds, and the mean seconds to the first token."""
    firsts: list[float] = []
    totals: list[float] = []
    while not totals or sum(totals) < least:
        _, first, total = generation(generate, next(prompts), device)
        firsts.append(first)
        totals.append(total)
    return Round(statistics.fmean(totals), facts=statistics.fmean(firsts))


def time_arms(arms: Mapping[str, Generate], subject: Subject, batch: int, options: StudyOptions) -> dict[str, Finding]:
    """Return what every arm took in each of some interleaved rounds; "interleaved" is the same for all of them.

    Args:
        arms: name -> arm.
        subject: whose prompts they decode.
        batch: rows.
        options: rounds, and those before them, which nobody measures; an arm's round repeats the generation until the
            seconds of a round have passed.
    """
    timed = [
        TimedArm(name, partial(_time, generate, batches_of(subject.pool, batch), subject.device, options.round_seconds))
        for name, generate in arms.items()
    ]
    for _ in range(options.warm_ups - 1):
        for one in timed:
            one.run()
    # One more round that nobody measures is measure's own.
    timings = measure(timed, options.rounds, f"time, batch {batch}")
    ended = datetime.now(UTC).isoformat()
    return {
        name: {"first_token_seconds": timings.facts[name], "seconds": seconds, "interleaved": ended}
        for name, seconds in timings.seconds.items()
    }


def medians(found: Finding) -> dict[str, Any]:
    """Return the medians of what ``time_arms`` found of an arm, in seconds a generation."""
    return {name: statistics.median(found[name]) for name in ("first_token_seconds", "seconds")}


def speed_over(ours: Finding | None, theirs: Finding | None) -> Spread | None:
    """Return the speed of an arm over another's, paired by round; None if their rounds were not interleaved."""
    if ours is None or theirs is None or ours["interleaved"] != theirs["interleaved"]:
        return None
    return Spread.of([b / a for a, b in zip(ours["seconds"], theirs["seconds"], strict=True)])


ROOFLINE = "roofline"
WEIGHT_BYTES = (2, 4)


def measure_rooflines(subject: Subject, results: Results) -> None:
    """Measure what a CPU reads and computes in float32, if nobody has yet.

    It reads weights of 2 and of 4 bytes, and those of the subject's oracle.
    """
    if subject.device.type != "cpu":
        return
    sizes = {*WEIGHT_BYTES, bytes_per_weight(subject.oracle)}
    if lacking := [size for size in sorted(sizes) if results.get(ROOFLINE, 1, str(size)) is None]:
        flops, found = measure_flops(torch.float32), {}
        for size in lacking:
            shape = model_shape(subject.forms.plain.config, size)
            found[str(size)] = {"bytes_per_second": measure_bandwidth(shape.weight_bytes), "flops_per_second": flops}
        results.put(ROOFLINE, 1, found)


def least_seconds(subject: Subject, results: Results, batch: int, weight_bytes: float) -> float | None:
    """Return the least time of a generation: one pass over the prompts, and one a token after the first.

    Args:
        subject: what is decoded.
        results: hold the rooflines (of a CPU), else None is returned.
        batch: rows.
        weight_bytes: of a stored weight.
    """
    found = results.get(ROOFLINE, 1, str(weight_bytes))
    if found is None:
        return None
    shape, prompt = model_shape(subject.forms.plain.config, weight_bytes), subject.prompt_length
    costs = [pass_cost(shape, batch, prompt, 0, num_logits=1)]
    costs += [pass_cost(shape, batch, 1, prompt + done) for done in range(subject.num_new - 1)]
    roofline = Roofline(found["bytes_per_second"], found["flops_per_second"])
    return sum(roofline.seconds(cost) for cost in costs)
