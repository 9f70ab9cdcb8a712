"""Were these counts drawn from that law: a test whose false alarms are bounded at any size, and what it can see."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Floats = NDArray[np.float64]
Counts = NDArray[np.int64] | Floats


def p_value(counts: Counts, probs: Floats) -> float:
    """Return an upper bound of the p-value of the likelihood-ratio test that ``counts`` were drawn from ``probs``.

    Args:
        counts: ``[C]``.
        probs: ``[C]``, which sum to 1 up to rounding.

    Returns:
        e^-x (e x / d)^d for x above d, else 1, which is no smaller than P(n KL(empirical law, law) >= x). x is n KL of
        these n counts, in nats, and d the number of cells less one. 0 if something was counted that cannot come.

    Guarantee: under the law a value of at most a comes with a probability of at most a, for any counts: no cell is too
        small, and no approximation fails far out in the tail, where alarms of one in a million lie.
    Source: Agrawal 2020, "Finite-Sample Concentration of the Multinomial in Relative Entropy" (IEEE Transactions on
        Information Theory, arXiv 1904.02291), theorem I.2.
    """
    if counts[probs == 0].any():
        return 0.0
    counts, probs = counts[probs > 0], probs[probs > 0] / probs.sum()
    came = counts > 0
    entropy = float((counts[came] * np.log(counts[came] / (counts.sum() * probs[came]))).sum())
    freedom = len(probs) - 1
    return 1.0 if entropy <= freedom else math.exp(_log_bound(entropy, freedom))


def _log_bound(entropy: float, freedom: int) -> float:
    return freedom - entropy + (freedom * math.log(entropy / freedom) if freedom else 0.0)


def threshold(freedom: int, level: float) -> float:
    """Return the entropy from which on ``p_value`` is at most ``level``."""
    return float(optimize.brentq(lambda x: _log_bound(x, freedom) - math.log(level), freedom, 1e7))


def noncentrality(freedom: int, level: float, power: float) -> float:
    """Return the chi-square distance, times the samples, that a test of this level sees with about this power.

    Args:
        freedom: the number of cells less one, at least 1.
        level: bound on the probability of an alarm under the truth.
        power: probability of an alarm at that distance, by the noncentral chi-square law of twice the entropy.
    """
    bound = 2 * threshold(freedom, level)
    return float(optimize.brentq(lambda x: stats.ncx2.sf(bound, freedom, x) - power, 1e-3, 1e6))


def samples_for(effect: float, num_cells: int, level: float, power: float) -> int:
    """Return how many samples tell a law over ``num_cells`` cells from one at total variation ``effect``.

    A law at total variation d has a relative entropy of at least 2 d^2 nats (Pinsker).
    """
    return math.ceil(noncentrality(max(num_cells - 1, 1), level, power) / (4 * effect**2))
