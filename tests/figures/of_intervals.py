"""Intervals, and what they decide, beside formulas written down once more."""

from itertools import product

import numpy as np

from specdec.stats.report import intervals
from specdec.stats.report.intervals import (
    Interval,
    bootstrap_ratio,
    format_estimate,
    paired_ratio,
    ratio_change,
    swap_p_value,
    units_to_tell,
    verdict,
)
from tests.support.line_mutants import Differences, differences, line_mutants

# Six units, of which one is long and slow: both tails of the bootstrap differ.
ABOVE, BELOW = [1.3, 2.9, 2.1, 9.0, 4.2, 0.8], [1.0, 2.0, 2.2, 3.5, 3.1, 1.1]
BEFORE, UNDER = [1.1, 3.5, 2.6, 8.0, 5.2, 1.2], [1.0, 2.1, 2.0, 3.6, 3.0, 1.0]
# Student's t at 0.975 and 0.95 with five degrees of freedom.
T975, T95 = 2.5705818366147395, 2.0150483733330233


def _spread(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the standard deviations of log ratios of sums, by the sums of squares and products."""
    n, r = a.shape[-1], a.sum(-1) / b.sum(-1)
    squares = (a * a).sum(-1) - 2 * r * (a * b).sum(-1) + r * r * (b * b).sum(-1)
    return np.sqrt(np.maximum(squares, 0) * n / (n - 1)) / a.sum(-1)


def bounds() -> Differences:
    """The bounds of both intervals."""
    a, b = np.array(ABOVE), np.array(BELOW)
    ratio, width = 20.3 / 12.9, T975 * float(_spread(a, b))
    drawn = np.random.default_rng(3).integers(6, size=(4000, 6))
    drawn = drawn[_spread(a[drawn], b[drawn]) > 1e-6]  # a unit drawn six times has none
    pulls = np.sort(np.log(a[drawn].sum(1) / b[drawn].sum(1) / ratio) / _spread(a[drawn], b[drawn]))
    tails = np.interp([0.025 * (len(pulls) - 1), 0.975 * (len(pulls) - 1)], np.arange(len(pulls)), pulls)
    delta, boot, few = paired_ratio(a, b), bootstrap_ratio(a, b, seed=3), bootstrap_ratio(a[:4], b[:4])
    alike = bootstrap_ratio(2 * b, b)
    found = {
        "delta": (delta.value, delta.low, delta.high, delta.num_units, delta.level),
        "bootstrap": (boot.value, boot.num_units, boot.level),
        "bootstrap low": boot.low,
        "bootstrap high": boot.high,
        "few": (few.value, few.low, few.high, few.num_units),
        "alike": (alike.low, alike.high),
    }
    expected = {
        "delta": (ratio, ratio * np.exp(-width), ratio * np.exp(width), 6, 0.95),
        "bootstrap": (ratio, 6, 0.95),
        "bootstrap low": ratio * np.exp(-tails[1] * _spread(a, b)),
        "bootstrap high": ratio * np.exp(-tails[0] * _spread(a, b)),
        "few": (15.3 / 8.7, None, None, 4),
        "alike": (2.0, 2.0),
    }
    return differences(found, expected)


def _many() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return twenty units, new and old, that lost a little."""
    rng = np.random.default_rng(1)
    below = rng.uniform(1, 3, 20)
    return (below * rng.lognormal(-0.05, 0.1, 20), below), (below * rng.lognormal(0, 0.1, 20), below)


def _p_of_many(bound: float, seed: int) -> float:
    """Return the share of 100,000 drawn swaps after which the mean change is as low."""
    (a, b), (c, d) = _many()
    logs, weights = np.log(a * d / (b * c * bound)), np.sqrt(b * d)
    rng, as_low = np.random.default_rng(seed), 1
    for _ in range(50):
        signs = 1 - 2 * rng.integers(2, size=(2000, 20))
        as_low += int((signs @ (weights * logs) <= weights @ logs + 1e-9).sum())
    return as_low / 100_001


def changes() -> Differences:
    """A ratio over the same ratio before, and the test that swaps both."""
    a, b, c, d = map(np.array, (ABOVE, BELOW, BEFORE, UNDER))
    now, was = a.sum() / b.sum(), c.sum() / d.sum()
    change = ratio_change((ABOVE, BELOW), (BEFORE, UNDER), 0.9)
    off = [(x - now * y) / a.sum() - (z - was * w) / c.sum() for x, y, z, w in zip(a, b, c, d, strict=True)]
    width = T95 * np.sqrt(6 / 5 * sum(one * one for one in off))
    weights = [np.sqrt(y * w) for y, w in zip(b, d, strict=True)]
    logs = [np.log(x / y / (z / w) / 0.9) for x, y, z, w in zip(a, b, c, d, strict=True)]
    observed = sum(w * x for w, x in zip(weights, logs, strict=True))
    swapped = [
        sum(sign * w * x for sign, w, x in zip(signs, weights, logs, strict=True))
        for signs in product((1, -1), repeat=6)
    ]
    few = ratio_change((ABOVE[:4], BELOW[:4]), (BEFORE[:4], UNDER[:4]))
    found = {"low": change.low, "high": change.high, "p": swap_p_value((ABOVE, BELOW), (BEFORE, UNDER), 0.9)}
    found |= {"few": (few.value, few.low), "p of many": swap_p_value(*_many(), bound=0.97, seed=3)}
    expected = {
        "low": now / was * np.exp(-width),
        "high": now / was * np.exp(width),
        "few": (15.3 / 8.7 / (15.2 / 8.7), None),
        "p of many": _p_of_many(0.97, 3),
        "p": sum(one <= observed + 1e-12 for one in swapped) / 64,
    }
    return differences(found | {"change": change.value}, expected | {"change": now / was})


def decisions() -> Differences:
    """What intervals decide, what it would take, and how they are printed."""
    slow, fast, open_ = Interval(0.8, 0.7, 0.9, 9), Interval(1.3, 1.1, 1.5, 9), Interval(1.1, 0.9, 1.35, 10)
    found = {
        "slower": verdict(slow, slow),
        "faster": verdict(fast, fast),
        "one is open": (verdict(slow, open_), verdict(fast, open_)),
        "they differ": (verdict(slow, fast), verdict(fast, slow), verdict()),
        "at 1": (verdict(Interval(1.1, 1.0, 1.2, 9)), verdict(Interval(0.9, 0.8, 1.0, 9))),
        "no bounds": verdict(Interval(2.0, None, None, 3)),
        # 10 (log(1.35 / 0.9) / 2 / log 1.1)^2 = 45.2; of the other 10 (log(1.4 / 0.9) / 2 / log 1.1)^2 = 53.7.
        "to tell": (units_to_tell(open_), units_to_tell(open_, Interval(1.1, 0.9, 1.4, 10))),
        "one more": units_to_tell(fast),
        "never": (units_to_tell(Interval(1.0, 0.9, 1.1, 9)), units_to_tell(Interval(2.0, None, None, 3))),
        "printed": (
            str(fast),
            format_estimate(1.25, 1, 1.5),
            format_estimate(1.25, 0.5, 2.0, 7),
            format_estimate(1.25, None, None, 4),
        ),
        "wide": (
            format_estimate(1.25, 0.5, 2.01, 7),
            format_estimate(1.25, 0.5, 2.01),
            format_estimate(1.25, None, None),
        ),
    }
    expected = {
        "slower": "slower",
        "faster": "faster",
        "one is open": ("not told apart",) * 2,
        "they differ": ("not told apart",) * 3,
        "at 1": ("not told apart",) * 2,
        "no bounds": "not told apart",
        "to tell": (46, 54),
        "one more": 10,
        "never": (None, None),
        "printed": ("1.30 [1.10, 1.50]", "1.25 [1.00, 1.50]", "1.25 [0.50, 2.00]", "1.25 (n = 4)"),
        "wide": ("1.25 (n = 7, wide)", "1.25 (wide)", "1.25"),
    }
    return differences(found, expected)


STATISTICS = (bounds, changes, decisions)
MUTANTS = line_mutants(
    (bootstrap_ratio, "* -spread", "* spread", bounds, "bootstrap low"),
    (paired_ratio, "0.5 + level / 2", "level", bounds, "delta"),
    (intervals._log_ratio_sd, "n / (n - 1)", "1", bounds, "delta"),
    (ratio_change, "/ a.sum() - (c", "/ a.sum() + (c", changes, "low"),
    (swap_p_value, "- np.log(bound)", "", changes, "p"),
    (intervals._random_swaps, "rng.integers(2,", "rng.integers(3,", changes, "p of many"),
    (verdict, "interval.low > 1", "interval.low >= 1", decisions, "at 1"),
    (units_to_tell, "/ 2", "", decisions, "to tell"),
    (format_estimate, "high <= WIDEST_PRINTED * low", "high - low <= WIDEST_PRINTED", decisions, "wide"),
)
