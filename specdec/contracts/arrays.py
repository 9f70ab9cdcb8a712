"""The arrays of host-side bookkeeping."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]


@lru_cache(maxsize=64)
def constant(size: int, value: int) -> IntArray:
    """Return an array ``[size]`` of one value; nobody can write to it."""
    array = np.full(size, value, dtype=np.int64)
    array.flags.writeable = False
    return array


def pad_rows(rows: Sequence[Sequence[int] | IntArray], fill: int = 0) -> IntArray:
    """Return rows of ids as one array ``[B, W]``, W the longest length, with ``fill`` after the ids of each row."""
    padded = np.full((len(rows), max(map(len, rows), default=0)), fill, dtype=np.int64)
    for place, ids in zip(padded, rows, strict=True):
        place[: len(ids)] = ids
    return padded
