"""Where the numbers of an array lie, for compiled code that reads and writes them there."""

import ctypes
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

# Typed by what it is given here: a cast at every use would be one more call of Python.
_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


def place(array: NDArray[Any]) -> int:
    """Return the address of a contiguous array ``[...]``, which must outlive its use.

    Asking numpy for it costs about a microsecond, and several after a pass; asking ctypes costs less.

    Raises:
        TypeError: the array can be written, and is not contiguous.
    """
    if array.flags.writeable and array.size:
        return ctypes.addressof(_first_byte(array))
    return array.ctypes.data
