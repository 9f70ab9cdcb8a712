"""One batch size after the other: a step taken apart by phase and draft length, and the speed-up that this predicts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from experiments.advise.calibrating import outcome_of
from experiments.harness.arms import PLAIN, EngineArm
from experiments.harness.building import build_shared, engine_arms
from experiments.harness.journal import Piece
from experiments.harness.rounds import doubling
from experiments.harness.run_outcome import ALL, DECODING_ALONE, END_TO_END, Outcome, in_flight
from experiments.strategies.strategy import LENGTH
from specdec import DraftSource, Oracle
from specdec.calibration_run import pass_seconds
from specdec.contracts import IntArray
from specdec.prompts import NamedPrompt
from specdec.stats import Stats
from specdec.theory import predicted_speedup

# Phases of a step whose times its record has; the last one is what lies between steps.
PHASES = ("propose", "score", "verify", "commit", "other")
REST = ("verify", "commit", "other")
# This many steps of a kind are enough to time it.
ENOUGH = 3


@dataclass(frozen=True)
class StepParts:
    """step(0) = a, step(k) = a + b [k > 0] + c k, by phase, in seconds.

    Args:
        a, b, c: phase -> seconds.
    """

    a: Mapping[str, float]
    b: Mapping[str, float]
    c: Mapping[str, float]

    @staticmethod
    def of(times: Mapping[int, Mapping[str, float]]) -> "StepParts":
        """Return the parts of measured steps: a as measured, b and c by least squares over k > 0.

        Args:
            times: k -> phase -> seconds; 0 and at least two more.
        """
        lengths = sorted(k for k in times if k)
        b, c = {}, {}
        for phase, plain in times[0].items():
            slope, once = np.polyfit(lengths, [times[k][phase] - plain for k in lengths], 1)
            b[phase], c[phase] = float(once), float(slope)
        return StepParts(dict(times[0]), b, c)

    def seconds(self, length: int, phases: Sequence[str] = PHASES) -> float:
        """Return the time of some phases of a step with drafts of a length."""
        return sum(self.a[one] + (self.b[one] + self.c[one] * length if length else 0.0) for one in phases)

    def row(self, times: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
        """Return them as cells of a table, with the residuals of the measured steps."""
        groups = {"": PHASES, " propose": ("propose",), " score": ("score",), " rest": REST}
        parts = {
            f"{name}{label}": 1e3 * sum(part[phase] for phase in phases)
            for label, phases in groups.items()
            for name, part in (("a", self.a), ("b", self.b), ("c", self.c))
            if name != "a" or not label
        }
        left = {k: sum(times[k].values()) / self.seconds(k) - 1 for k in sorted(times) if k}
        return parts | {f"k = {k}": f"{share:+.1%}" for k, share in left.items()}


@dataclass(frozen=True)
class PassTimes:
    """Passes that are timed apart, by their number of rows and the nodes of each row.

    Args:
        rows: numbers of rows, ascending.
        seconds: nodes of a row -> seconds of a pass of each number of rows.
    """

    rows: tuple[int, ...]
    seconds: Mapping[int, Sequence[float]]

    @staticmethod
    def measure(oracle: Oracle, num_nodes: Sequence[int], rows: int) -> "PassTimes":
        """Return the times of passes of 1, 2, 4, … and ``rows`` rows; a wider one takes no less, whatever is read."""
        sizes = doubling(rows)
        seconds = [np.maximum.accumulate(pass_seconds(oracle, num_nodes, size)).tolist() for size in sizes]
        return PassTimes(tuple(sizes), dict(zip(num_nodes, zip(*seconds, strict=True), strict=True)))

    def cost(self, num_nodes: int, rows: IntArray) -> float:
        """Return the mean time of passes of numbers of rows ``[N]``, over that of one node in each of the most rows.

        It is linear between the numbers of rows that were timed.
        """
        return float(np.interp(rows, self.rows, self.seconds[num_nodes]).mean()) / self.seconds[1][-1]


def rows_of_steps(outcome: Outcome, arm: str) -> IntArray:
    """Return ``[S]`` how many rows each step of an arm had."""
    counts = [np.bincount(_steps_of(columns)) for columns in outcome.records(arm)]
    return np.concatenate(counts)


def _steps_of(columns: Mapping[str, Any]) -> IntArray:
    """Return, for each record of a unit, the number of its step in the unit, from 0."""
    _, step = np.unique(np.asarray([columns["round"], columns["step"]]), axis=1, return_inverse=True)
    return step.ravel()


def step_times(outcome: Outcome, arm: str, length: int, rows: int) -> dict[str, float] | None:
    """Return the seconds of an arm's steps by phase: medians over steps in which ``rows`` rows all drafted ``length``.

    None if there are fewer than three such steps. What lies between steps is the mean of all.
    """
    stats, found = outcome.stats(arm), []
    assert stats is not None
    for columns in outcome.records(arm):
        step, fits = _steps_of(columns), np.asarray(columns["draft_depth"]) == length
        whole = np.bincount(step, fits) == rows
        times = [np.bincount(step, columns[f"seconds_{phase}"])[whole] for phase in PHASES[:-1]]
        found.append(np.asarray(times))
    steps = np.concatenate(found, axis=1)
    if steps.shape[1] < ENOUGH:
        return None
    medians = dict(zip(PHASES, np.median(steps, axis=1).tolist(), strict=False))
    return {**medians, PHASES[-1]: stats.seconds[PHASES[-1]] / stats.target_calls}


def crossing(points: Sequence[tuple[int, float]]) -> float | None:
    """Return the batch at which a speed-up falls below 1, between those measured; None: it does not.

    Args:
        points: batch size and speed-up, ascending; between them the speed-up falls with the batch's logarithm. If it is
            below 1 at the first batch, that batch is returned.
    """
    if points and points[0][1] < 1:
        return float(points[0][0])
    for (small, above), (large, below) in pairwise(points):
        if above >= 1 > below:
            share = (above - 1) / (above - below)
            return float(small * (large / small) ** share)
    return None


def predict(plain: Stats, stats: Stats, parts: StepParts, length: int, plain_cost: float, width_cost: float) -> float:
    """Return the speed-up that a step's parts and the cost of its width predict; ``COLUMNS`` has the formula.

    Args:
        plain, stats: of plain decoding and of the arm; they give tokens of a step and rows in flight.
        parts: of steps of this batch size; of scoring only plain decoding's is used.
        length: drafted tokens.
        plain_cost, width_cost: of the passes of plain decoding and of the arm; see ``PassTimes.cost``.
    """
    once = parts.a["score"]
    drafting = parts.seconds(length, ("propose",)) / once
    rest = parts.seconds(length, REST) / once
    tokens = (stats.block_efficiency or math.nan) * in_flight(plain, stats)
    return predicted_speedup(tokens, width_cost, drafting, rest) * (parts.seconds(0) / once - 1 + plain_cost)


@dataclass(frozen=True)
class Size(Piece):
    """A batch size; one unit of the journal."""

    batch_size: int


class Crossover:
    """Measure one batch size after the other.

    Args:
        arguments: of the command line.
        oracle: shared by all arms.
        prompts: that fit it, at least as many as the largest batch has rows.
    """

    def __init__(self, arguments: Mapping[str, Any], oracle: Oracle, prompts: Sequence[NamedPrompt]) -> None:
        self.arguments, self.oracle = arguments, oracle
        self.prompts = [replace(prompt, kind=ALL) for prompt in prompts]

    def arms(self, batch_size: int) -> dict[int, EngineArm]:
        """Return draft length -> arm; 0 is plain decoding.

        Raises:
            ValueError: this oracle cannot have the strategy, or its options are unusable.
        """
        name, lengths = self.arguments["strategy"], self.arguments["draft_lengths"]
        arguments = {**self.arguments, "batch_size": batch_size, "ignore_eos": True}
        sources = dict[str, DraftSource | None]({PLAIN: None})
        for length in lengths:
            sources[f"{name}, {length}"] = build_shared(name, arguments, self.oracle, **{LENGTH: length})
        return dict(zip((0, *lengths), engine_arms(arguments, self.oracle, sources), strict=True))

    def measure(self, size: Size) -> dict[str, Any]:
        """Return what the journal keeps of a batch size.

        Raises:
            RuntimeError: a prompt failed, an exact output differs, or too few full steps drafted one of the lengths.
        """
        rows, arms = size.batch_size, self.arms(size.batch_size)
        outcome = outcome_of(
            [*arms.values()], self.prompts, rows, self.arguments["seed"], self.arguments["max_new_tokens"]
        )
        if problems := outcome.problems():
            raise RuntimeError("; ".join(problems))
        passes = PassTimes.measure(self.oracle, [1 + length for length in sorted(arms)], rows)
        timed = {length: step_times(outcome, arm.name, length, rows) for length, arm in arms.items()}
        times = {length: one for length, one in timed.items() if one is not None}
        if missing := [length for length in arms if length not in times]:
            raise RuntimeError(
                f"no {ENOUGH} steps of {rows} rows that all drafted {missing} tokens: give more tokens or prompts"
            )
        parts = StepParts.of(times)
        return {
            "rows": [_row(rows, length, outcome, arm.name, parts, passes) for length, arm in arms.items() if length],
            "parts": {"batch": rows, **parts.row(times)},
        }


def _row(batch: int, length: int, outcome: Outcome, arm: str, parts: StepParts, passes: PassTimes) -> dict[str, Any]:
    plain, stats, alone = outcome.stats(PLAIN), outcome.stats(arm), outcome.decoding_speedup(arm)
    assert plain is not None
    assert stats is not None
    assert alone is not None
    costs = (passes.cost(1 + k, rows_of_steps(outcome, name)) for k, name in ((0, PLAIN), (length, arm)))
    predicted = predict(plain, stats, parts, length, *costs)
    return {
        "batch": batch,
        "k": length,
        "tau": stats.block_efficiency,
        "v": passes.cost(1 + length, np.array([batch])),
        "rows": in_flight(plain, stats),
        DECODING_ALONE: alone.value,
        "predicted": predicted,
        "measured/predicted": alone.value / predicted,
        END_TO_END: str(outcome.speedup(arm)),
    }
