"""Ratios of paired measurements: two intervals, what they decide, and what it would take to decide."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

# With fewer units an interval tells of the quantile of Student's t more than of the measurement.
FEWEST_UNITS = 5
_RESAMPLES = 4000

Verdict = Literal["faster", "slower", "not told apart"]


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval that covers its true value in ``level`` of experiments.

    ``low`` and ``high`` are None if there are too few units for an interval.
    """

    value: float
    low: float | None
    high: float | None
    num_units: int
    level: float = 0.95

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.2f} (n = {self.num_units})"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def paired_ratio(numerator: ArrayLike, denominator: ArrayLike, level: float = 0.95) -> Interval:
    """Return sum(numerator) / sum(denominator) over paired units, with an interval clustered by unit.

    With r the ratio and d_i = a_i - r b_i, the variance sd^2 of r is n / (n - 1) sum(d_i^2) / sum(b)^2; the interval
    is r exp(+- t sd / r) with the t quantile of n - 1 degrees of freedom (the delta method, clustered by unit).

    Args:
        numerator: ``[n]`` a_i >= 0, one number per unit (a prompt, or a batch of prompts), repeats already summed.
        denominator: ``[n]`` b_i >= 0 of the same units.
        level: coverage in (0, 1).

    Returns:
        The ratio; without bounds for fewer than ``FEWEST_UNITS`` units.

    Raises:
        ValueError: no units, unequal numbers of them, or a sum that is not positive.

    Source: the ratio estimator's linearised variance (Cochran 1977, Sampling Techniques, section 6.4).
    Deviations: bounds on the log scale, which keeps them positive.
    """
    a, b = _paired(numerator, denominator, level)
    n, ratio = len(a), float(a.sum() / b.sum())
    if n < FEWEST_UNITS:
        return Interval(ratio, None, None, n, level)
    sd = np.sqrt(n / (n - 1) * ((a - ratio * b) ** 2).sum()) / b.sum()
    width = stats.t.ppf(0.5 + level / 2, n - 1) * sd / ratio
    return Interval(ratio, float(ratio * np.exp(-width)), float(ratio * np.exp(width)), n, level)


def bootstrap_ratio(numerator: ArrayLike, denominator: ArrayLike, level: float = 0.95, seed: int = 0) -> Interval:
    """Return the ratio of ``paired_ratio`` with the interval of the cluster bootstrap: units are drawn again.

    Args:
        numerator, denominator, level: see ``paired_ratio``.
        seed: of the resampling.

    Returns:
        The ratio and the quantiles of 4,000 resampled ones; without bounds for fewer than ``FEWEST_UNITS`` units.

    Raises:
        ValueError: see ``paired_ratio``.

    Source: the percentile bootstrap over clusters (Efron and Tibshirani 1993, An Introduction to the Bootstrap,
        chapters 8 and 13).
    """
    a, b = _paired(numerator, denominator, level)
    n, ratio = len(a), float(a.sum() / b.sum())
    if n < FEWEST_UNITS:
        return Interval(ratio, None, None, n, level)
    drawn = np.random.default_rng(seed).integers(n, size=(_RESAMPLES, n))
    below = b[drawn].sum(1)
    low, high = np.quantile(a[drawn].sum(1)[below > 0] / below[below > 0], [0.5 - level / 2, 0.5 + level / 2])
    return Interval(ratio, float(low), float(high), n, level)


def _paired(
    numerator: ArrayLike, denominator: ArrayLike, level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or not len(a):
        raise ValueError(f"numerator and denominator must be paired, [n] with n >= 1; got shapes {a.shape}, {b.shape}")
    if not (a.sum() > 0 and b.sum() > 0):
        raise ValueError(f"both sums must be positive, got {a.sum()} and {b.sum()}")
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie in (0, 1), got {level}")
    return a, b


def verdict(*intervals: Interval) -> Verdict:
    """Return what intervals of a speed-up decide, if all of them agree; without bounds they decide nothing."""
    if all(interval.low is not None and interval.low > 1 for interval in intervals):
        return "faster"
    if all(interval.high is not None and interval.high < 1 for interval in intervals):
        return "slower"
    return "not told apart"


def units_to_tell(interval: Interval) -> int | None:
    """Return how many units like those measured would tell the ratio from 1, if it is what was measured.

    On the log scale an interval's width falls with the root of the number of units.

    Returns:
        The number; None without bounds, or if the ratio is 1.
    """
    if interval.low is None or interval.high is None or interval.value == 1:
        return None
    half = np.log(interval.high / interval.low) / 2
    return max(FEWEST_UNITS, int(np.ceil(interval.num_units * (half / np.log(interval.value)) ** 2)))
