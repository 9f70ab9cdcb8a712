"""Products of whole numbers, one number after the other, in rational arithmetic."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np


def nearest(number: Fraction) -> np.float32:
    """Return the float32 nearest to a number, of two the one whose last bit is even; normal or 0."""
    guess = np.float32(float(number))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(near, key=lambda one: (abs(Fraction(float(one)) - number), one.view(np.uint32) & 1))


def exact(number: np.float32) -> Fraction:
    return Fraction(float(number))


def product(
    x: np.ndarray, values: np.ndarray, scales: np.ndarray, minima: np.ndarray | None, group: int
) -> Sequence[np.float32]:
    """Return ``[out]`` of inputs ``[in]`` and a weight ``[out, in]``, with scales and minima ``[out, groups]``."""
    totals = [np.float32(0)] * len(values)
    for g, start in enumerate(range(0, len(x), group)):
        part = [exact(one) for one in x[start : start + group]]
        scale = max(nearest(max(abs(one) for one in part) / 127), np.finfo(np.float32).tiny)
        numbers = [round(exact(nearest(one / exact(scale)))) for one in part]
        shift = nearest(exact(scale) * sum(numbers))
        for out, row in enumerate(values):
            total = sum(int(w) * q for w, q in zip(row[start : start + group], numbers, strict=True))
            both = nearest(exact(scale) * exact(scales[out, g]))
            totals[out] = nearest(total * exact(both) + exact(totals[out]))
            if minima is not None:
                totals[out] = nearest(exact(shift) * exact(minima[out, g]) + exact(totals[out]))
    return totals
