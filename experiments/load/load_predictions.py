"""What the cost of a pass's width predicts of a load: seconds a step by rows in flight, then a queue in balance.

A step of n rows takes T(n) = a(n) v(n, w) + drafting(n) + rest(n). Here a is plain decoding's pass and v the cost of w
nodes a row, from passes that are timed apart; all else is as measured in steps of n rows. Requests of L tokens arrive
at a rate of l a second. A prompt's pass takes P and stops all rows, so a row's token takes

    TPOT = T(1 + x) / tau(1 + x) / (1 - l P)

beside x other rows: the mean number in flight, since that is what a Poisson arrival finds. By Little's law
x = l (P + L TPOT). With B rows, nothing balances above l = 1 / (P + L T(B) / (B tau(B))): the capacity.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from experiments.harness.arms import PLAIN
from experiments.load.serving import LoadRun, ServedStep
from specdec.theory import WidthCurve

# So many steps with as many rows tell what such a step takes.
ENOUGH = 3


@dataclass(frozen=True)
class StepCosts:
    """An arm's steps by rows in flight, without those that seat requests; linear between the numbers of rows.

    Attributes:
        rows: numbers of rows of which there are enough steps, ascending.
        tau: tokens of a row's step.
        nodes: scored in a row, the pending token included.
        score, rest: seconds of the pass, and of all else, drafting included; medians.
    """

    rows: tuple[int, ...]
    tau: tuple[float, ...]
    nodes: tuple[float, ...]
    score: tuple[float, ...]
    rest: tuple[float, ...]

    @staticmethod
    def of(runs: Sequence[LoadRun]) -> "StepCosts | None":
        """Return them from an arm's runs; None: there are too few steps of every number of rows."""
        by_rows: dict[int, list[ServedStep]] = {}
        for step in (step for run in runs for step in run.steps if not step.seated):
            by_rows.setdefault(step.rows, []).append(step)
        kept = {rows: by_rows[rows] for rows in sorted(by_rows) if len(by_rows[rows]) >= ENOUGH}
        if not kept:
            return None
        parts = [
            (
                rows,
                sum(step.emitted for step in steps) / (rows * len(steps)),
                sum(step.nodes for step in steps) / (rows * len(steps)),
                float(np.median([step.seconds["score"] for step in steps])),
                float(np.median([sum(step.seconds.values()) - step.seconds["score"] for step in steps])),
            )
            for rows, steps in kept.items()
        ]
        return StepCosts(*zip(*parts, strict=True))

    def at(self, name: str, rows: float) -> float:
        """Return one of the figures at a number of rows, which need not be whole."""
        return float(np.interp(rows, self.rows, getattr(self, name)))


@dataclass(frozen=True)
class LoadPrediction:
    """What an arm's steps, with passes timed apart, say of its loads.

    Attributes:
        steps: of the arm.
        plain: of plain decoding.
        curves: of passes, by number of rows, ascending.
        batch_size: rows at most.
        prefill: seconds of a prompt's pass.
        num_tokens: of a request, mean.
    """

    steps: StepCosts
    plain: StepCosts
    curves: tuple[WidthCurve, ...]
    batch_size: int
    prefill: float
    num_tokens: float

    def step_seconds(self, rows: float) -> float:
        """Return what a step takes."""
        return self.plain.at("score", rows) * self.width_cost(rows) + self.steps.at("rest", rows)

    def width_cost(self, rows: float) -> float:
        """Return v of a step, linear between the numbers of rows whose passes were timed."""
        nodes = self.steps.at("nodes", rows)
        costs = [float(curve.at(nodes)) for curve in self.curves]
        return float(np.interp(rows, [curve.batch_size for curve in self.curves], costs))

    @property
    def saw_full(self) -> bool:
        """Whether enough steps of the arm and of plain decoding had all rows; without them the capacity is unknown."""
        return min(self.steps.rows[-1], self.plain.rows[-1]) >= self.batch_size

    @property
    def capacity(self) -> float:
        """The requests a second above which the queue grows; too high if not ``saw_full``."""
        full = self.batch_size
        return 1 / (self.prefill + self.num_tokens * self.step_seconds(full) / (full * self.steps.at("tau", full)))

    def rows(self, rate: float) -> float:
        """Return the rows in use that a token meets at a request rate, its own included; they need not be whole."""
        if rate >= self.capacity:
            return float(self.batch_size)
        beside = brentq(
            lambda others: rate * (self.prefill + self.num_tokens * self._token(rate, self._rows(others))) - others,
            0.0, self.batch_size + 1.0,
        )  # fmt: skip
        return self._rows(beside)

    def tpot(self, rate: float) -> float | None:
        """Return the seconds of an output token at a request rate; None: it is beyond the capacity."""
        return None if rate >= self.capacity else self._token(rate, self.rows(rate))

    def _rows(self, others: float) -> float:
        """Return the rows in use if a token's own row has this many others beside it."""
        return min(float(self.batch_size), 1 + others)

    def _token(self, rate: float, rows: float) -> float:
        """Return the seconds of an output token in steps of this many rows."""
        return self.step_seconds(rows) / self.steps.at("tau", rows) / (1 - rate * self.prefill)


def prefill_seconds(runs: Sequence[LoadRun]) -> float:
    """Return what a prompt's pass takes: what lies outside the phases in steps that seat requests, a request each."""
    seating = [step for run in runs for step in run.steps if step.seated]
    return sum(step.seconds["other"] for step in seating) / sum(step.seated for step in seating)


def tokens_of(runs: Sequence[LoadRun]) -> float:
    """Return the mean number of tokens of a request."""
    return float(np.mean([len(request.tokens) for run in runs for request in run.requests]))


def predictions(
    runs: Mapping[str, Sequence[LoadRun]], curves: tuple[WidthCurve, ...], batch_size: int
) -> dict[str, LoadPrediction]:
    """Return arm -> prediction; arms are left out whose steps are too few, and all are if plain decoding's are.

    Args:
        runs: arm -> its loads.
        curves: the cost of width for each number of rows, ascending.
        batch_size: rows at most.
    """
    costs = {arm: own for arm, found in runs.items() if (own := StepCosts.of(found)) is not None}
    if PLAIN not in costs:
        return {}
    return {
        arm: LoadPrediction(own, costs[PLAIN], curves, batch_size, prefill_seconds(runs[arm]), tokens_of(runs[arm]))
        for arm, own in costs.items()
    }
