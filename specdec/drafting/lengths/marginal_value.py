"""The threshold of marginal value: what a further token costs, at the rate of tokens so far."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from specdec.contracts import FloatArray, IntArray
from specdec.drafting.lengths.feedback import Fate
from specdec.drafting.lengths.schedules import ScheduleSession
from specdec.theory import Calibration

_PRIOR_COST = 16.0  # How many passes of its own weigh as much as the calibrated rate in a request's rate.


@dataclass(frozen=True)
class MarginalValue:
    """Ask of the next token what it costs at the row's rate: t = r ``Calibration.next_costs`` (see ``Threshold``).

    r is what the request emitted per unit of time so far, plain steps being the unit: tokens over the sum of
    ``Calibration.step_cost`` of its steps. It begins at the calibrated rate, with the weight of 16 passes, and never
    counts below 1, the rate of plain decoding, which is to be had at any time.

    Args:
        calibration: holds the costs.
        longest: drafted tokens.
    """

    calibration: Calibration
    longest: int

    adaptive: ClassVar[bool] = True

    def open(self, num_rows: int) -> "_MarginalValueSession":
        """Return a session for a run."""
        return _MarginalValueSession(self, num_rows)


class _MarginalValueSession(ScheduleSession):
    def __init__(self, schedule: MarginalValue, num_rows: int) -> None:
        self.calibration = schedule.calibration
        # After the last token nothing may follow, at whatever price.
        self.next_costs = np.append(schedule.calibration.next_costs(schedule.longest), np.inf)
        self.tokens, self.cost = np.zeros(num_rows), np.ones(num_rows)

    def begin(self, rows: IntArray) -> None:
        self.tokens[rows], self.cost[rows] = _PRIOR_COST * self.calibration.rate, _PRIOR_COST

    def update(self, rows: IntArray, fate: Fate) -> None:
        self.tokens[rows] += np.where(fate.known, fate.accepted + 1, 0)
        self.cost[rows] += np.where(fate.known, self.calibration.step_cost(fate.drafted), 0)

    def values(self, rows: IntArray, depth: int = 0) -> FloatArray:
        rates: FloatArray = np.maximum(self.tokens[rows] / self.cost[rows], 1.0)
        return rates * float(self.next_costs[depth])
