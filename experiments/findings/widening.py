"""What a wider pass costs: t(W)/t(1) of an arm, from the passes that its run and plain decoding's made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

Records = Mapping[str, Sequence[Any]]

# So many passes of a shape, of either kind, tell what it takes.
_ENOUGH = 3


@dataclass(frozen=True)
class Widening:
    """The most frequent pass of an arm that verified drafts, of those with a plain one of as many rows, beside it.

    Attributes:
        rows: in flight.
        nodes: W, of each row, padding included.
        cost: t(W)/t(1), a ratio of medians.
        fewer: the same of the fewest rows of which the run has enough passes of W nodes and of one; None: it has not.
    """

    rows: int
    nodes: int
    cost: float
    fewer: "Widening | None" = None

    @staticmethod
    def of(plain: Sequence[Records], own: Sequence[Records]) -> "Widening | None":
        """Return it from the records of every unit; None if there is nothing to compare.

        A pass is wide if it has more than one node a row. It is compared with plain decoding's pass of as many rows. If
        plain decoding never had as many rows in flight, the arm's own passes without drafts take its place.
        """
        ones, passes = _passes(plain), _passes(own)
        wide = [shape for shape in passes if shape[1] > 1]
        plain_like = [shape for shape in wide if (shape[0], 1) in ones]
        own_like = [shape for shape in wide if (shape[0], 1) in passes]
        if not (alike := plain_like or own_like):
            return None
        rows, nodes = max(alike, key=lambda shape: len(passes[shape]))
        once = median((ones if plain_like else passes)[rows, 1])
        fewer = None
        for few in range(rows - 1, 0, -1):
            single = ones.get((few, 1), []) + passes.get((few, 1), [])
            several = passes.get((few, nodes), [])
            if min(len(single), len(several)) >= _ENOUGH:
                fewer = Widening(few, nodes, median(several) / median(single))
        return Widening(rows, nodes, median(passes[rows, nodes]) / once, fewer)

    @property
    def of_one_row(self) -> float:
        """What t(W)/t(1) of a row alone would be if a pass had a fixed price, and one for each node."""
        if self.cost <= 1 or self.cost >= self.nodes:
            return self.cost
        node = (self.cost - 1) / (self.rows * (self.nodes - self.cost))  # over the fixed price
        return (1 + node * self.nodes) / (1 + node)


def _passes(units: Sequence[Records]) -> dict[tuple[int, int], list[float]]:
    """Return (rows, nodes of a row) -> seconds of every such pass."""
    found: dict[tuple[int, int], list[float]] = {}
    for records in units:
        _, first = np.unique(np.column_stack([records["round"], records["step"]]), axis=0, return_index=True)
        for at in first:
            rows = records["num_rows"][at]
            # Every row has an equal share of a pass's time.
            found.setdefault((rows, records["num_nodes"][at]), []).append(rows * records["seconds_score"][at])
    return found
