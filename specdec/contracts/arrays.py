"""The arrays of host-side bookkeeping."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]


@lru_cache(maxsize=64)
def constant(size: int, value: int) -> IntArray:
    """Return ``[size]`` times one value; nobody can write to it."""
    array = np.full(size, value, dtype=np.int64)
    array.flags.writeable = False
    return array
