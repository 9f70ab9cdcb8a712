"""Numbers that compiled code reads and writes where they lie.

To ask numpy for an array's address costs about a microsecond, and several after a pass. A ctypes array is handed over
as it is, and numpy reads the same numbers.
"""

import ctypes
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

# Typed by what they are given here: a cast at every use would be one more call of Python.
_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
_array: Callable[..., Integers] = np.frombuffer


def integers(*shape: int) -> tuple[ctypes.Array[ctypes.c_int64], Integers]:
    """Return zeros of a shape for compiled code to write, as ctypes and as numpy know them.

    Cost: for a number of them that is new, a type of ctypes, some 40 microseconds: for arrays of few sizes.
    """
    size = prod(shape)
    memory = (ctypes.c_int64 * max(size, 1))()
    return memory, _array(memory, np.int64, size).reshape(shape)


def place(array: NDArray[Any]) -> int:
    """Return the address of a contiguous array, which must outlive its use.

    Raises:
        TypeError: the array can be written, and is not contiguous.
    """
    if array.flags.writeable and array.size:
        return ctypes.addressof(_first_byte(array))
    return array.ctypes.data
