"""What the joint law of several rows is held against, and what one row's part of it is."""

import itertools
import math
from collections.abc import Sequence

from specdec.exactness.output_law import JointLaw, Law


def product_law(laws: Sequence[Law]) -> JointLaw:
    """Return the joint law of rows that have nothing to do with each other: ``{(ids of row 0, ...): probability}``.

    Args:
        laws: one for each row, as of ``oracle_law``.

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
