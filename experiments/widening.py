"""What a wider pass costs: t(W)/t(1) of an arm, from the passes that its run and plain decoding's made."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec.contracts import FloatArray, IntArray

Records = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Widening:
    """The most frequent pass of an arm that verified drafts, beside a plain one.

    Attributes:
        rows: in flight.
        nodes: W, of each row, padding included.
        cost: t(W)/t(1), a ratio of medians.
    """

    rows: int
    nodes: int
    cost: float

    @staticmethod
    def of(plain: Sequence[Records], own: Sequence[Records]) -> "Widening | None":
        """Return it from the records of every unit; None if no pass was wider than one node.

        A plain pass is one of as many rows, or of any number if plain decoding had none such.
        """
        rows, nodes, seconds = _passes(own)
        frequent = Counter(zip(rows[nodes > 1].tolist(), nodes[nodes > 1].tolist(), strict=True)).most_common(1)
        if not frequent:
            return None
        (num_rows, width), _ = frequent[0]
        plain_rows, _, plain_seconds = _passes(plain)
        alike = plain_seconds[plain_rows == num_rows]
        once = np.median(alike if alike.size else plain_seconds)
        return Widening(num_rows, width, float(np.median(seconds[(rows == num_rows) & (nodes == width)]) / once))

    @property
    def of_one_row(self) -> float:
        """What t(W)/t(1) of a row alone would be if a pass had a fixed price, and one for each node: never above it."""
        if self.cost <= 1 or self.cost >= self.nodes:
            return self.cost
        node = (self.cost - 1) / (self.rows * (self.nodes - self.cost))  # over the fixed price
        return (1 + node * self.nodes) / (1 + node)


def _passes(units: Sequence[Records]) -> tuple[IntArray, IntArray, FloatArray]:
    """Return rows, nodes of a row and seconds of every pass, once each."""
    columns = []
    for records in units:
        _, first = np.unique(np.column_stack([records["round"], records["step"]]), axis=0, return_index=True)
        columns.append([np.array(records[name])[first] for name in ("num_rows", "num_nodes", "seconds_score")])
    rows, nodes, shares = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return rows, nodes, rows * shares  # every row has an equal share of a pass's time
