"""Laws over sequences of ids, of one request or of several jointly: products, marginals, distances."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

Law = dict[tuple[int, ...], float]
JointLaw = dict[tuple[tuple[int, ...], ...], float]


def product_law(laws: Sequence[Law]) -> JointLaw:
    """Return the joint law of independent rows: ``{(ids of row 0, ...): probability}``.

    Args:
        laws: one for each row, as from ``oracle_law``.

    Cost: the product of their sizes.
    """
    return {
        tuple(ids for ids, _ in row_by_row): math.prod(p for _, p in row_by_row)
        for row_by_row in itertools.product(*(law.items() for law in laws))
    }


def marginal_law(law: JointLaw, row: int) -> Law:
    """Return the law of one row's ids, whatever the others emit."""
    found: Law = {}
    for ids, probability in law.items():
        found[ids[row]] = found.get(ids[row], 0.0) + probability
    return found


def total_variation(first: Mapping[Any, float], second: Mapping[Any, float]) -> float:
    """Return half the sum of absolute differences of two laws over sequences, or over sequences of several rows."""
    return sum(abs(first.get(ids, 0.0) - second.get(ids, 0.0)) for ids in {*first, *second}) / 2
