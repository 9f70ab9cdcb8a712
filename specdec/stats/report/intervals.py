"""Ratios of paired measurements: two intervals, what they decide, and what it would take to decide.

How many units they need was simulated, with ratios of units that are lognormal (sigma 0.35) or have a heavy tail (1 +
half a Lomax variate of index 2.5), and lognormal weights (sigma 0.5). The columns: coverage of 95 % intervals, by the
delta method and by the bootstrap; high / low of the bootstrap (lognormal: median, 95th percentile); how often
``verdict`` tells a ratio of 1 from 1:

| units | lognormal  | heavy tail | high / low     | wrong verdicts: lognormal, heavy tail |
| ----- | ---------- | ---------- | -------------- | ------------------------------------- |
| 4     | 0.92, 0.92 | 0.78, 0.89 | 6.7, over 10^7 | 0.04, 0.10                            |
| 5     | 0.93, 0.93 | 0.79, 0.89 | 3.1, 85        | 0.05, 0.11                            |
| 6     | 0.92, 0.93 | 0.76, 0.88 | 2.4, 12        | 0.06, 0.13                            |
| 8     | 0.92, 0.92 | 0.79, 0.87 | 2.0, 4.6       | 0.06, 0.11                            |
| 20    | 0.93, 0.94 | 0.83, 0.91 | 1.5, 1.9       | 0.05, 0.11                            |

So 5 units are enough if 20 are: neither coverage nor verdicts gain from more. With a heavy tail even 40 cover
0.86 and 0.91; nearly all wrong verdicts are then "slower", from samples without a large ratio ("faster": 0.3 %). What 5
or 6 units cost is width: now and then the bootstrap has a bound far away. Such an interval is not printed; its bounds
are kept, as verdicts read them.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

# With fewer units the bootstrap says more of its resamples than of the measurement.
FEWEST_UNITS = 5
# Bounds further apart, such as 0.4 and 2, tell a reader little.
WIDEST_PRINTED = 4.0
_RESAMPLES = 4000
# If one unit dominates, the bootstrap's bounds may be further off than a float reaches.
_FURTHEST_LOG = 500.0
# With up to this many units all swaps are tried; with more, swaps are drawn.
_ENUMERATED, _SWAPS, _SWAPS_AT_ONCE = 16, 100_000, 2_000
_SAMPLES_OF_POWER, _SWAPS_OF_POWER = 1_000, 10_000

Sums = tuple[ArrayLike, ArrayLike]  # numerators and denominators, paired by unit

Verdict = Literal["faster", "slower", "not told apart"]


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval that covers its true value in ``level`` of experiments.

    ``low`` and ``high`` are None if there are too few units for an interval. As text it has no bounds either if
    ``high`` is more than ``WIDEST_PRINTED`` times ``low``: then it has the number of units and a word that says so.
    """

    value: float
    low: float | None
    high: float | None
    num_units: int
    level: float = 0.95

    def __str__(self) -> str:
        return format_estimate(self.value, self.low, self.high, self.num_units)


def format_estimate(value: float, low: float | None, high: float | None, num_units: int | None = None) -> str:
    """Return an estimate with its bounds; without those, or if they lie far apart, with its number of units."""
    notes = [] if num_units is None else [f"n = {num_units}"]
    if low is not None and high is not None:
        if high <= WIDEST_PRINTED * low:
            return f"{value:.2f} [{low:.2f}, {high:.2f}]"
        notes.append("wide")
    return f"{value:.2f} ({', '.join(notes)})" if notes else f"{value:.2f}"


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
    a, b = _check_pairs(numerator, denominator, level)
    n, ratio = len(a), float(a.sum() / b.sum())
    if n < FEWEST_UNITS:
        return Interval(ratio, None, None, n, level)
    width = stats.t.ppf(0.5 + level / 2, n - 1) * float(_log_ratio_sd(a[None], b[None])[0])
    return Interval(ratio, float(ratio * np.exp(-width)), float(ratio * np.exp(width)), n, level)


def median_ratio(numerator: ArrayLike, denominator: ArrayLike, level: float = 0.95) -> Interval:
    """Return the median of the pairs' ratios, with the interval of the sign test: two of these ratios.

    A stall in one pair moves neither. With 6 to 8 pairs the bounds are the least and the greatest ratio.

    Args:
        numerator, denominator: ``[n]``, repeats of one measurement, paired; each denominator above 0.
        level: coverage in (0, 1), reached or exceeded.

    Returns:
        The median; without bounds if even the least and the greatest ratio do not reach the level (0.95: n below 6).

    Raises:
        ValueError: see ``paired_ratio``; a denominator of 0.

    Source: the interval for a median by order statistics (Conover 1999, Practical Nonparametric Statistics, 3.2).
    """
    a, b = _check_pairs(numerator, denominator, level)
    if not (b > 0).all():
        raise ValueError(f"each denominator must be positive, got {b.min()}")
    n, ratios = len(a), np.sort(a / b)
    # Bounds leave out the k least and the k greatest: the median lies beyond one of them with a chance of P(X <= k).
    k = int(stats.binom.ppf(0.5 - level / 2, n, 0.5)) - 1
    low, high = (None, None) if k < 0 else (float(ratios[k]), float(ratios[n - 1 - k]))
    return Interval(float(np.median(ratios)), low, high, n, level)


def bootstrap_ratio(numerator: ArrayLike, denominator: ArrayLike, level: float = 0.95, seed: int = 0) -> Interval:
    """Return the ratio of ``paired_ratio`` with the interval of the studentised cluster bootstrap: units drawn again.

    Args:
        numerator, denominator, level: see ``paired_ratio``.
        seed: of the resampling.

    Returns:
        The ratio; bounds by the quantiles of (log r* - log r) / sd* over 4,000 resamples, with the sd of
        ``paired_ratio`` for each, no further from the ratio than a factor of e^500. Without bounds for fewer than
        ``FEWEST_UNITS`` units.

    Raises:
        ValueError: see ``paired_ratio``.

    Source: the bootstrap-t interval over clusters (Efron and Tibshirani 1993, An Introduction to the Bootstrap,
        chapters 8 and 12).
    Deviations: resamples without spread, such as one unit drawn n times, are left out.
    """
    a, b = _check_pairs(numerator, denominator, level)
    n, ratio = len(a), float(a.sum() / b.sum())
    if n < FEWEST_UNITS:
        return Interval(ratio, None, None, n, level)
    spread = float(_log_ratio_sd(a[None], b[None])[0])
    drawn = np.random.default_rng(seed).integers(n, size=(_RESAMPLES, n))
    above, below = a[drawn], b[drawn]
    usable = (above.sum(1) > 0) & (below.sum(1) > 0)
    above, below = above[usable], below[usable]
    spreads = _log_ratio_sd(above, below)
    # Rounding leaves a spread of 1e-16 where there is none.
    some = spreads > 1e-12
    if spread <= 1e-12 or not some.any():
        return Interval(ratio, ratio, ratio, n, level)
    ratios = (above.sum(1) / below.sum(1))[some]
    pulls = np.log(ratios / ratio) / spreads[some]
    off = np.quantile(pulls, [0.5 + level / 2, 0.5 - level / 2]) * -spread
    low, high = ratio * np.exp(np.clip(off, -_FURTHEST_LOG, _FURTHEST_LOG))
    return Interval(ratio, float(low), float(high), n, level)


def ratio_change(new: Sums, old: Sums, level: float = 0.95) -> Interval:
    """Return a ratio of sums over the same ratio measured before, with an interval clustered by unit.

    Args:
        new, old: numerators and denominators ``[n]`` of the same units, in the same order: for a unit that is hard both
            times only the difference counts.
        level: coverage in (0, 1).

    Returns:
        The ratio of both ratios; without bounds for fewer than ``FEWEST_UNITS`` units. The variance of its logarithm is
        n / (n - 1) sum(d_i^2), with d_i the difference of (a_i - r b_i) / sum(a), new less old.

    Raises:
        ValueError: see ``paired_ratio``; or the two have different units.
    """
    (a, b), (c, d) = _two_samples(new, old, level)
    n, was, now = len(a), float(c.sum() / d.sum()), float(a.sum() / b.sum())
    if n < FEWEST_UNITS:
        return Interval(now / was, None, None, n, level)
    off = (a - now * b) / a.sum() - (c - was * d) / c.sum()
    width = stats.t.ppf(0.5 + level / 2, n - 1) * np.sqrt(n / (n - 1) * (off**2).sum())
    return Interval(now / was, float(now / was * np.exp(-width)), float(now / was * np.exp(width)), n, level)


def swap_p_value(new: Sums, old: Sums, bound: float = 1.0, seed: int = 0) -> float:
    """Return the p-value of the test that units' ratios are at least ``bound`` times what they were.

    If they are just that, a unit's new ratio over ``bound`` and its old ratio could as well have come the other way
    round: the logarithm of its change would have the other sign. The p-value is the share of such swaps, each unit's by
    a fair coin, after which the mean change is as low or lower. The mean weighs a unit by the root of the product of
    its denominators, which no swap and no scale of a whole run changes.

    Args:
        new, old: see ``ratio_change``; all numbers positive.
        bound: positive.
        seed: of the swaps that are drawn.

    Raises:
        ValueError: see ``ratio_change``; or a number is not positive.

    Guarantee: at most a with a probability of at most a, if each unit's logarithm of the change is distributed
        symmetrically about log(bound) or more; it is if nothing changed between two measurements of a unit.
    Cost: all 2^n swaps for up to 16 units; for more, 100,000 drawn ones, with 10^-5 as the least value.
    Source: Fisher 1935 (The Design of Experiments, section 21); drawn swaps: Phipson and Smyth 2010.
    """
    (a, b), (c, d) = _two_samples(new, old, 0.5)
    if min(part.min() for part in (a, b, c, d)) <= 0:
        raise ValueError(
            "every unit's numerators and denominators must be positive to be swapped: leave empty ones out"
        )
    weights = np.sqrt(b * d)
    parts = weights / weights.sum() * (np.log(a / b) - np.log(c / d) - np.log(bound))
    # The mean is as low or lower if what is swapped has no negative sum.
    n, rng = len(a), np.random.default_rng(seed)
    if n <= _ENUMERATED:
        return float(np.mean(_all_swaps(n) @ parts >= -1e-12))
    turns = range(_SWAPS // _SWAPS_AT_ONCE)
    at_least = 1 + sum(int((_random_swaps(n, _SWAPS_AT_ONCE, rng) @ parts >= -1e-12).sum()) for _ in turns)
    return at_least / (_SWAPS + 1)


@lru_cache(maxsize=2)
def _all_swaps(n: int) -> NDArray[np.float64]:
    """Return ``[2^n, n]`` which units are swapped, 1 or 0, in all ways."""
    return (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(np.float64)


def _random_swaps(n: int, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return ``[count, n]`` of the same, each unit's by a fair coin."""
    return rng.integers(2, size=(count, n)).astype(np.float64)


def smallest_loss(interval: Interval, power: float = 0.9, bound: float = 1.0) -> float:
    """Return the smallest share whose loss is found with this probability, both by the interval and by swaps.

    It is found if the interval lies below ``bound`` and ``swap_p_value`` is at most (1 - level) / 2.

    Args:
        interval: of ``ratio_change``, with bounds.
        power: in (0, 1).
        bound: the ratio from which on nothing counts as lost.

    Guarantee: for units of equal weight whose changes have normal logarithms, with the spread that the interval says.
        ``tests/contract/measuring/test_guard.py`` holds the probability to 0.9 within 0.05, also with unequal weights.
    """
    assert interval.low is not None
    assert interval.high is not None
    quantile = stats.t.ppf(0.5 + interval.level / 2, interval.num_units - 1)
    spread = np.log(interval.high / interval.low) / 2 / quantile
    return float(1 - bound * np.exp(-spread * _reach(interval.num_units, interval.level, power)))


@lru_cache(maxsize=64)
def _reach(n: int, level: float, power: float) -> float:
    """Return how far below the bound a mean of n units must lie to be found, in its standard deviations.

    For a simulated sample, the shift at which each decision turns is known. The interval's turns at its upper bound.
    The swaps' turns where the share of swaps whose mean is as large as the shift falls below the rate.
    """
    rng, rate = np.random.default_rng(0), (1 - level) / 2
    swaps = _all_swaps(n) if 2**n <= _SWAPS_OF_POWER else _random_swaps(n, _SWAPS_OF_POWER, rng)
    sizes = np.maximum(swaps.sum(1), 1)
    # Rates such as 1 / 128 must not lose their last swap to rounding.
    beyond = len(swaps) - 1 - int(rate * len(swaps) + 1e-6)
    width = stats.t.ppf(0.5 + level / 2, n - 1) / np.sqrt(n)
    is_swapped = swaps.any(1)
    turns = []
    for sample in rng.standard_normal((_SAMPLES_OF_POWER, n)):
        means = np.where(is_swapped, swaps @ sample / sizes, np.inf)
        by_swaps = np.partition(means, beyond)[beyond]
        turns.append(max(by_swaps, sample.mean() + width * sample.std(ddof=1)))
    return float(np.quantile(turns, power) * np.sqrt(n))


def _two_samples(
    new: Sums, old: Sums, level: float
) -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]]:
    first, second = _check_pairs(*new, level), _check_pairs(*old, level)
    if len(first[0]) != len(second[0]):
        raise ValueError(f"new and old must be of the same units; got {len(first[0])} and {len(second[0])}")
    return first, second


def _log_ratio_sd(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``[R]`` the standard deviation of the logarithm of each ratio of sums, of units ``[R, n]``."""
    n, ratio = a.shape[1], a.sum(1) / b.sum(1)
    off = a - ratio[:, None] * b
    spread: NDArray[np.float64] = np.sqrt(n / (n - 1) * (off**2).sum(1)) / b.sum(1) / ratio
    return spread


def _check_pairs(
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
    if intervals and all(interval.low is not None and interval.low > 1 for interval in intervals):
        return "faster"
    if intervals and all(interval.high is not None and interval.high < 1 for interval in intervals):
        return "slower"
    return "not told apart"


def units_to_tell(*intervals: Interval) -> int | None:
    """Return how many units like those measured would tell the ratio from 1 with even odds, if it is as measured.

    On the log scale an interval's width falls with the root of the number of units.

    Args:
        intervals: of one ratio, all of which must tell; at least one.

    Returns:
        The number, larger than that of the units measured; None without bounds, or if the ratio is 1.
    """
    needed = []
    for one in intervals:
        if one.low is None or one.high is None or one.value == 1:
            return None
        half = (np.log(one.high) - np.log(one.low)) / 2
        needed.append(int(np.ceil(one.num_units * (half / np.log(one.value)) ** 2)))
    return max(*needed, intervals[0].num_units + 1)
