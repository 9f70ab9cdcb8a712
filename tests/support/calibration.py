"""One false-alarm rate for the whole statistical suite, and what each test is able to see."""

import math

import numpy as np
from numpy.typing import NDArray

from specdec.exactness import goodness

SUITE_FALSE_ALARM = 1e-6
POWER = 0.99
# Every statistic that a test compares with LEVEL, and how many times it does so in one run of the suite.
NUM_COMPARISONS = {
    "joint law through the real cache": 3,
    "emitted per step of a row": 8,
    "coupled acceptance": 1,
    "independence of draws": 4,
    "draws follow their law": 6,
    "draws without replacement": 2,
    "coupled draws agree": 1,
    "check_lossless by samples": 3,
    "gaps of arrivals": 1,
}
LEVEL = SUITE_FALSE_ALARM / sum(NUM_COMPARISONS.values())

Floats = NDArray[np.float64]
Counts = NDArray[np.int64] | Floats


def p_value(name: str, counts: Counts, probs: Floats) -> float:
    """Return a bound of the p-value of the test that ``counts`` were drawn from ``probs`` (flat arrays).

    An id that cannot come but came gives 0.
    """
    assert name in NUM_COMPARISONS, f"{name!r} is not counted in the suite's false-alarm rate"
    return goodness.p_value(counts, probs)


def detectable(num_samples: int, probs: Floats) -> float:
    """Return the total variation d such that any law at least d away is told from ``probs`` with probability POWER.

    A law at total variation d has a relative entropy of at least 2 d^2 nats (Pinsker); 1 for one cell.
    """
    freedom = int(np.count_nonzero(probs)) - 1
    return 1.0 if freedom == 0 else math.sqrt(goodness.noncentrality(freedom, LEVEL, POWER) / (4 * num_samples))
