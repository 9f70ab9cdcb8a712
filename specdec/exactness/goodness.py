"""Were these counts drawn from that law: a chi-square test, and what a test of its size is able to see."""

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Floats = NDArray[np.float64]
Counts = NDArray[np.int64] | Floats
# Cells that expect fewer are pooled: the chi-square law of the statistic is an approximation for larger ones.
LEAST_EXPECTED = 5


def pooled(counts: Counts, probs: Floats) -> tuple[Counts, Floats]:
    """Return counts and probabilities with the cells that expect fewer than five pooled into one."""
    small = probs * counts.sum() < LEAST_EXPECTED
    if small.sum() < 2:
        return counts, probs
    return np.append(counts[~small], counts[small].sum()), np.append(probs[~small], probs[small].sum())


def p_value(counts: Counts, probs: Floats) -> float:
    """Return the p-value of Pearson's chi-square test that ``counts`` were drawn from ``probs``.

    Args:
        counts: ``[C]``.
        probs: ``[C]``, of sum 1 up to rounding.

    Returns:
        0 if something came that cannot come, 1 if only one cell is left after pooling.
    """
    if counts[probs == 0].any():
        return 0.0
    counts, probs = pooled(counts[probs > 0], probs[probs > 0])
    if len(probs) == 1:
        return 1.0
    return float(stats.chisquare(counts, probs * counts.sum() / probs.sum()).pvalue)


def noncentrality(freedom: int, level: float, power: float) -> float:
    """Return the chi-square distance, times the samples, that a test of this level sees with this power.

    Args:
        freedom: degrees of freedom of the test.
        level: probability of an alarm under the truth.
        power: probability of an alarm at that distance.
    """
    bound = stats.chi2.isf(level, freedom)
    return float(optimize.brentq(lambda x: stats.ncx2.sf(bound, freedom, x) - power, 1e-3, 1e5))


def detectable(num_samples: int, probs: Floats, level: float, power: float) -> float:
    """Return the total variation d such that a law at least d away from ``probs`` is told from it.

    A law at total variation d has a chi-square distance of at least 4 d^2 (Cauchy-Schwarz).
    """
    freedom = len(pooled(probs * num_samples, probs)[1]) - 1
    return float(np.sqrt(noncentrality(freedom, level, power) / (4 * num_samples)))


def samples_for(effect: float, num_cells: int, level: float, power: float) -> int:
    """Return how many samples tell a law over so many cells from one at total variation ``effect``; see above."""
    return int(np.ceil(noncentrality(max(num_cells - 1, 1), level, power) / (4 * effect**2)))
