"""Ratios of paired measurements: two intervals, what they decide, and what it would take to decide.

How many units they need was simulated, with ratios of units that are lognormal (sigma 0.35) or have a heavy tail (1 +
half a Lomax variate of index 2.5), and lognormal weights (sigma 0.5). What 95 % intervals cover, by the delta method
and by the bootstrap; high / low of the bootstrap (lognormal: median, 95th percentile); how often ``verdict`` tells a
ratio of 1 from 1:

| units | lognormal  | heavy tail | high / low     | wrong verdicts: lognormal, heavy tail |
| ----- | ---------- | ---------- | -------------- | ------------------------------------- |
| 4     | 0.92, 0.92 | 0.78, 0.89 | 6.7, over 10^7 | 0.04, 0.10                            |
| 5     | 0.93, 0.93 | 0.79, 0.89 | 3.1, 85        | 0.05, 0.11                            |
| 6     | 0.92, 0.93 | 0.76, 0.88 | 2.4, 12        | 0.06, 0.13                            |
| 8     | 0.92, 0.92 | 0.79, 0.87 | 2.0, 4.6       | 0.06, 0.11                            |
| 20    | 0.93, 0.94 | 0.83, 0.91 | 1.5, 1.9       | 0.05, 0.11                            |

So 5 units are enough if 20 are: neither coverage nor verdicts gain by more of them. With a heavy tail even 40 cover
0.86 and 0.91; nearly all wrong verdicts are then "slower", from samples without a large ratio ("faster": 0.3 %). What 5
or 6 units cost is width: now and then the bootstrap has a bound far away. Such an interval is not printed; its bounds
are kept, as verdicts read them.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

# With fewer units the bootstrap tells of its resamples more than of the measurement.
FEWEST_UNITS = 5
# Bounds further apart, as 0.4 and 2, tell a reader little.
WIDEST_PRINTED = 4.0
_RESAMPLES = 4000
_SWAPS, _SWAPS_AT_ONCE = 100_000, 2_000

Sums = tuple[ArrayLike, ArrayLike]  # numerators and denominators, paired by unit

Verdict = Literal["faster", "slower", "not told apart"]


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval that covers its true value in ``level`` of experiments.

    ``low`` and ``high`` are None if there are too few units for an interval. As text it has no bounds either if
    ``high`` is more than ``WIDEST_PRINTED`` times ``low``, but the number of units and a word that says so.
    """

    value: float
    low: float | None
    high: float | None
    num_units: int
    level: float = 0.95

    def __str__(self) -> str:
        return printed(self.value, self.low, self.high, self.num_units)


def printed(value: float, low: float | None, high: float | None, num_units: int | None = None) -> str:
    """Return an estimate with its bounds; without those, or if they lie far apart, with how many units it is of."""
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
    a, b = _paired(numerator, denominator, level)
    n, ratio = len(a), float(a.sum() / b.sum())
    if n < FEWEST_UNITS:
        return Interval(ratio, None, None, n, level)
    width = stats.t.ppf(0.5 + level / 2, n - 1) * float(_spread(a[None], b[None])[0])
    return Interval(ratio, float(ratio * np.exp(-width)), float(ratio * np.exp(width)), n, level)


def bootstrap_ratio(numerator: ArrayLike, denominator: ArrayLike, level: float = 0.95, seed: int = 0) -> Interval:
    """Return the ratio of ``paired_ratio`` with the interval of the studentised cluster bootstrap: units drawn again.

    Args:
        numerator, denominator, level: see ``paired_ratio``.
        seed: of the resampling.

    Returns:
        The ratio; bounds by the quantiles of (log r* - log r) / sd* over 4,000 resamples, with the sd of
        ``paired_ratio`` for each. Without bounds for fewer than ``FEWEST_UNITS`` units.

    Raises:
        ValueError: see ``paired_ratio``.

    Source: the bootstrap-t interval over clusters (Efron and Tibshirani 1993, An Introduction to the Bootstrap,
        chapters 8 and 12).
    Deviations: resamples without spread, such as one unit drawn n times, are left out.
    """
    a, b = _paired(numerator, denominator, level)
    n, ratio = len(a), float(a.sum() / b.sum())
    if n < FEWEST_UNITS:
        return Interval(ratio, None, None, n, level)
    spread = float(_spread(a[None], b[None])[0])
    drawn = np.random.default_rng(seed).integers(n, size=(_RESAMPLES, n))
    above, below = a[drawn], b[drawn]
    usable = (above.sum(1) > 0) & (below.sum(1) > 0)
    above, below = above[usable], below[usable]
    spreads = _spread(above, below)
    # Rounding leaves a spread of 1e-16 where there is none.
    some = spreads > 1e-12
    if spread <= 1e-12 or not some.any():
        return Interval(ratio, ratio, ratio, n, level)
    ratios = (above.sum(1) / below.sum(1))[some]
    pulls = np.log(ratios / ratio) / spreads[some]
    low, high = np.quantile(pulls, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(ratio, float(ratio * np.exp(-high * spread)), float(ratio * np.exp(-low * spread)), n, level)


def ratio_change(new: Sums, old: Sums, level: float = 0.95) -> Interval:
    """Return a ratio of sums over the same ratio measured before, with an interval clustered by unit.

    Args:
        new, old: numerators and denominators ``[n]`` of the same units, in the same order: of a unit that is hard both
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


def swap_p_value(new: Sums, old: Sums, seed: int = 0) -> float:
    """Return the p-value of the test that a ratio of sums did not fall.

    If nothing changed, what a unit showed new and old could as well have come the other way round. The share of such
    swaps, each unit's by a fair coin, after which the ratio fell as far or further is the p-value.

    Args:
        new, old: see ``ratio_change``.
        seed: of the swaps.

    Guarantee: if nothing changed, at most a with a probability of at most a, whatever the units' distribution.
    Cost: 100,000 swaps; the least value is about 2^-n, or 10^-5.
    Source: Fisher 1935 (The Design of Experiments, section 21); drawn swaps: Phipson and Smyth 2010.
    """
    both = np.stack([np.concatenate(pair) for pair in zip(*_two_samples(new, old, 0.5), strict=True)])
    n = both.shape[1] // 2
    seen = _log_change(both[:, :n].sum(1), both[:, n:].sum(1))
    at_least, rng = 1, np.random.default_rng(seed)
    for _ in range(_SWAPS // _SWAPS_AT_ONCE):
        stays = rng.integers(2, size=(_SWAPS_AT_ONCE, n)).astype(np.float64)
        first = np.concatenate([stays, 1 - stays], axis=1) @ both.T
        at_least += int((_log_change(first.T, both.sum(1)[:, None] - first.T) <= seen + 1e-12).sum())
    return at_least / (_SWAPS + 1)


def _log_change(new: NDArray[np.float64], old: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithm of a ratio over another, of sums (numerator, denominator) along the first axis."""
    change: NDArray[np.float64] = np.log(new[0] / new[1]) - np.log(old[0] / old[1])
    return change


def smallest_loss(interval: Interval, power: float = 0.9) -> float:
    """Return the share that has to be lost for the interval's upper bound to be below 1 with this probability.

    Args:
        interval: of ``ratio_change``, with bounds.
        power: in (0, 1).
    """
    assert interval.low is not None
    assert interval.high is not None
    bound, reserve = (float(stats.t.ppf(at, interval.num_units - 1)) for at in (0.5 + interval.level / 2, power))
    spread = np.log(interval.high / interval.low) / 2 / bound
    return float(1 - np.exp(-spread * (bound + reserve)))


def _two_samples(
    new: Sums, old: Sums, level: float
) -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]]:
    first, second = _paired(*new, level), _paired(*old, level)
    if len(first[0]) != len(second[0]):
        raise ValueError(f"new and old must be of the same units; got {len(first[0])} and {len(second[0])}")
    return first, second


def _spread(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``[R]`` the standard deviation of the logarithm of each ratio of sums, of units ``[R, n]``."""
    n, ratio = a.shape[1], a.sum(1) / b.sum(1)
    off = a - ratio[:, None] * b
    spread: NDArray[np.float64] = np.sqrt(n / (n - 1) * (off**2).sum(1)) / b.sum(1) / ratio
    return spread


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
        half = np.log(one.high / one.low) / 2
        needed.append(int(np.ceil(one.num_units * (half / np.log(one.value)) ** 2)))
    return max(*needed, intervals[0].num_units + 1)
