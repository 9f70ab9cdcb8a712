"""One false-alarm rate for the whole statistical suite, and what each test is able to see."""

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

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
}
LEVEL = SUITE_FALSE_ALARM / sum(NUM_COMPARISONS.values())

Floats = NDArray[np.float64]
Counts = NDArray[np.int64] | Floats


def _pooled(counts: Counts, probs: Floats) -> tuple[Counts, Floats]:
    """Return counts and probabilities with the cells that expect fewer than five pooled into one."""
    small = probs * counts.sum() < 5
    if small.sum() < 2:
        return counts, probs
    return np.append(counts[~small], counts[small].sum()), np.append(probs[~small], probs[small].sum())


def p_value(name: str, counts: Counts, probs: Floats) -> float:
    """Return the p-value of a chi-square test that ``counts`` were drawn from ``probs`` (flat arrays).

    An id that cannot come but came gives 0.
    """
    assert name in NUM_COMPARISONS, f"{name!r} is not counted in the suite's false-alarm rate"
    if counts[probs == 0].any():
        return 0.0
    counts, probs = _pooled(counts[probs > 0], probs[probs > 0])
    return float(stats.chisquare(counts, probs * counts.sum() / probs.sum()).pvalue)


def detectable(num_samples: int, probs: Floats) -> float:
    """Return the total variation d such that any law at least d away is told from ``probs`` with probability POWER.

    A law at total variation d has a chi-square distance of at least 4 d^2 (Cauchy-Schwarz).
    """
    freedom = len(_pooled(probs * num_samples, probs)[1]) - 1
    bound = stats.chi2.isf(LEVEL, freedom)
    noncentrality = optimize.brentq(lambda x: stats.ncx2.sf(bound, freedom, x) - POWER, 1e-3, 1e4)
    return float(np.sqrt(noncentrality / (4 * num_samples)))
