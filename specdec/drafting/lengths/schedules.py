"""Thresholds for a policy's score: one that is constant, one that follows acceptance, one of marginal value."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from specdec.contracts import FloatArray, IntArray
from specdec.drafting.lengths.feedback import Fate
from specdec.theory import Calibration, check_share

_PRIOR_COST = 16.0  # How many passes of its own weigh as much as the calibrated rate in a request's rate.


class ScheduleSession(Protocol):
    """A threshold at work on one run, one value a row."""

    def begin(self, rows: IntArray) -> None:
        """Start anew in slots ``rows`` ``[B]``."""
        return

    def update(self, rows: IntArray, fate: Fate) -> None:
        """Learn how the last drafts of slots ``rows`` ``[B]`` fared."""
        return

    def values(self, rows: IntArray, depth: int = 0) -> FloatArray:
        """Return the thresholds ``[B]`` of the next token after ``depth`` drafted ones, in slots ``rows`` ``[B]``."""
        ...


class Schedule(Protocol):
    """A way of choosing a threshold; ``open`` starts a run."""

    @property
    def adaptive(self) -> bool:
        """Whether it depends on how drafts fare."""

    def open(self, num_rows: int) -> ScheduleSession:
        """Return a session for a run of ``num_rows`` slots."""


@dataclass(frozen=True)
class Constant(ScheduleSession):
    """Keep one threshold for all rows and steps.

    Raises:
        ValueError: a threshold outside 0..1.
    """

    threshold: float

    adaptive: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_share("threshold", self.threshold)

    def open(self, num_rows: int) -> "Constant":
        """Return a session for a run."""
        return self

    def values(self, rows: IntArray, depth: int = 0) -> FloatArray:
        """Return ``[B]``, the same threshold for each row and depth. See ``ScheduleSession.values``."""
        return np.full(len(rows), self.threshold)


@dataclass(frozen=True)
class Tracked:
    """Steer a row's threshold so that a target share of its drafted tokens is accepted.

    With a the share of the last draft that stands, A <- memory A + (1 - memory) a follows it; then the threshold t
    becomes t + (1 - inertia) step if A is at most the target (draft less), else t - (1 - inertia) step.

    Args:
        threshold: of a request's first draft; A begins at the target.
        target: share of drafted tokens that is to be accepted.
        step: how far a threshold is pulled.
        memory: weight of what A was.
        inertia: weight of what t was.

    Raises:
        ValueError: a number outside 0..1.

    Source: Zhang et al. 2023 (Draft & Verify, arXiv 2309.08168), adaptive draft-exiting; its defaults.
    Deviations: a step without a draft changes nothing; t stays within 0..1; it belongs to a row, not to the process.
    """

    threshold: float = 0.6
    target: float = 0.9
    step: float = 0.01
    memory: float = 0.5
    inertia: float = 0.9

    adaptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("threshold", "target", "step", "memory", "inertia"):
            check_share(name, getattr(self, name))

    def open(self, num_rows: int) -> "_TrackedSession":
        """Return a session for a run."""
        return _TrackedSession(self, num_rows)


class _TrackedSession(ScheduleSession):
    def __init__(self, schedule: Tracked, num_rows: int) -> None:
        self.schedule = schedule
        self.threshold, self.share = np.zeros(num_rows), np.zeros(num_rows)

    def begin(self, rows: IntArray) -> None:
        self.threshold[rows], self.share[rows] = self.schedule.threshold, self.schedule.target

    def update(self, rows: IntArray, fate: Fate) -> None:
        own, told = self.schedule, fate.known & (fate.drafted > 0)
        rows, share = rows[told], fate.accepted[told] / fate.drafted[told]
        self.share[rows] = own.memory * self.share[rows] + (1 - own.memory) * share
        pull = np.where(self.share[rows] <= own.target, own.step, -own.step)
        self.threshold[rows] = np.clip(self.threshold[rows] + (1 - own.inertia) * pull, 0, 1)

    def values(self, rows: IntArray, depth: int = 0) -> FloatArray:
        return self.threshold[rows]


class MarginalValue(ScheduleSession):
    """Ask of the next token what it costs at the row's rate: t = r ``Calibration.next_costs`` (see ``Threshold``).

    r is what the request emitted per unit of time so far, plain steps being the unit: tokens over the sum of
    ``Calibration.step_cost`` of its steps. It begins at the calibrated rate, with the weight of 16 passes, and never
    counts below 1, the rate of plain decoding, which is available at any time.

    Args:
        calibration: holds the costs.
        longest: the most drafted tokens.
        num_rows: slots of the run.
    """

    def __init__(self, calibration: Calibration, longest: int, num_rows: int) -> None:
        self.calibration = calibration
        # After the last token nothing may follow, at whatever price.
        self.next_costs = np.append(calibration.next_costs(longest), np.inf)
        self.tokens, self.cost = np.zeros(num_rows), np.ones(num_rows)

    def begin(self, rows: IntArray) -> None:
        """Give slots ``rows`` ``[B]`` the calibrated rate."""
        self.tokens[rows], self.cost[rows] = _PRIOR_COST * self.calibration.rate, _PRIOR_COST

    def update(self, rows: IntArray, fate: Fate) -> None:
        """Count the tokens and the cost of the last steps; see ``ScheduleSession.update``."""
        self.tokens[rows] += np.where(fate.known, fate.accepted + 1, 0)
        self.cost[rows] += np.where(fate.known, self.calibration.step_cost(fate.drafted), 0)

    def values(self, rows: IntArray, depth: int = 0) -> FloatArray:
        """Return ``[B]`` what the next token costs at each row's rate; infinite after the last one."""
        rates: FloatArray = np.maximum(self.tokens[rows] / self.cost[rows], 1.0)
        return rates * float(self.next_costs[depth])


def as_schedule(threshold: float | Schedule) -> Schedule:
    """Return a schedule as it is, or the one that keeps a number.

    Raises:
        ValueError: a number outside 0..1, or something that is neither.
    """
    if isinstance(threshold, int | float | np.number):
        check_share("threshold", threshold)  # a bool is none
        return Constant(float(threshold))
    if isinstance(threshold, type) or not hasattr(threshold, "open"):
        raise ValueError(f"threshold={threshold!r} is neither a number nor a schedule such as Tracked(0.6)")
    return threshold
