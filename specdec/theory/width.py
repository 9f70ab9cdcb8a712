"""What a pass costs by the number of its nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.theory.ranges import check_count

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class WidthCurve:
    """v(n), the time of n nodes a row over that of one: measured at some widths, and straight between them.

    Beyond the largest width v rises as steeply as it did on the whole. Whoever holds the curve says what is timed: a
    pass, or a whole step.

    Args:
        num_nodes: widths in ascending order, the first of which is 1: the pending token alone.
        costs: v at these widths; 1 at the first, and never falling.
        batch_size: rows of each measured pass, all of them of that width.

    Raises:
        ValueError: the widths or costs are not as described.
    """

    num_nodes: tuple[int, ...]
    costs: tuple[float, ...]
    batch_size: int = 1

    def __post_init__(self) -> None:
        widths, costs = np.array(self.num_nodes), np.array(self.costs, dtype=np.float64)
        if not (len(widths) == len(costs) > 0 and widths[0] == 1 and (np.diff(widths) > 0).all()):
            raise ValueError(f"num_nodes must ascend from 1, with a cost for each: got {self.num_nodes}, {self.costs}")
        if not (costs[0] == 1 and (np.diff(costs) >= 0).all() and np.isfinite(costs).all()):
            raise ValueError(f"costs must be finite, begin at 1 and never fall, not {self.costs}")
        check_count("batch_size", self.batch_size)

    @staticmethod
    def linear(node_cost: float) -> "WidthCurve":
        """Return the curve on which every further node adds ``node_cost``."""
        return WidthCurve((1, 2), (1.0, 1.0 + node_cost))

    @staticmethod
    def of_seconds(num_nodes: Sequence[int], seconds: Sequence[float], batch_size: int = 1) -> "WidthCurve":
        """Return the curve of measured times. One below an earlier one is an error of reading: the earlier one counts.

        Args:
            num_nodes: widths in ascending order from 1.
            seconds: of each.
            batch_size: see above.
        """
        costs = np.maximum.accumulate(np.array(seconds) / seconds[0])
        return WidthCurve(tuple(num_nodes), tuple(costs.tolist()), batch_size)

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "WidthCurve":
        """Return what ``dataclasses.asdict`` made, also with the lists of JSON."""
        return WidthCurve(tuple(plain["num_nodes"]), tuple(plain["costs"]), plain["batch_size"])

    def __call__(self, num_nodes: int) -> float:
        """Return v of one width."""
        return float(self.at(np.array([num_nodes]))[0])

    def at(self, num_nodes: Any) -> FloatArray:
        """Return v of an array of widths, ``[...]`` float64 of their shape."""
        widths, costs = np.array(self.num_nodes), np.array(self.costs)
        slope = (costs[-1] - costs[0]) / max(widths[-1] - widths[0], 1)
        beyond = np.maximum(np.asarray(num_nodes) - widths[-1], 0)
        values: FloatArray = np.interp(num_nodes, widths, costs) + slope * beyond
        return values
