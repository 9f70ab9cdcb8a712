"""Numbers that compiled code reads and writes where they lie.

To ask numpy for an array's address costs about a microsecond, and several after a pass. A ctypes array is handed over
as it is, and numpy reads the same numbers.
"""

import ctypes
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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


class Kind(NamedTuple):
    """A kind of numbers, as numpy and torch name it."""

    of_arrays: np.dtype[Any]
    of_tensors: torch.dtype


INT64, BOOL = Kind(np.dtype(np.int64), torch.int64), Kind(np.dtype(np.bool_), torch.bool)
FLOAT64 = Kind(np.dtype(np.float64), torch.float64)
FLOATS = {kind.of_arrays: kind for kind in (Kind(np.dtype(np.float32), torch.float32), FLOAT64)}


class OtherKind(Exception):
    """Numbers are of another kind than compiled code reads."""


def bytes_of(numbers: NDArray[Any] | None, kind: Kind) -> bytes | None:
    """Return the bytes of an array, None for none. Raises OtherKind if its numbers are of another kind."""
    if numbers is None:
        return None
    if numbers.dtype != kind.of_arrays:
        raise OtherKind
    return numbers.tobytes()


def places_of(*given: tuple[Tensor | NDArray[Any] | None, Kind]) -> list[int] | None:
    """Return where numbers lie, 0 for none; None if some cannot be read there, since they are of another kind."""
    places = []
    for numbers, kind in given:
        if numbers is None:
            places.append(0)
        elif isinstance(numbers, np.ndarray):
            if numbers.dtype != kind.of_arrays or not numbers.flags.c_contiguous:
                return None
            places.append(place(numbers))
        elif numbers.dtype == kind.of_tensors and numbers.is_cpu and numbers.is_contiguous():
            places.append(numbers.data_ptr())
        else:
            return None
    return places
