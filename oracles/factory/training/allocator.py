"""Keep the memory of one training step for the next."""

import ctypes
import sys

# Parameters of glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Tell the C library not to give freed memory back, for the rest of the process; only glibc can be told.

    A step frees and allocates the same hundreds of megabytes for every operation. Given back each time, their pages
    have to be mapped and cleared anew, which is a large part of a step on a CPU.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 2**28)):
        mallopt(parameter, value)
