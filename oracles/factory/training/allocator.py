"""Keep the memory of one training step for the next, and give fragmented memory back."""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

# Parameters of glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Keep the C library from giving freed memory back by itself, for the rest of the process; this needs glibc.

    A step frees and allocates the same hundreds of megabytes for every operation. If they are given back each time,
    their pages must be mapped and cleared again: a step of ``train_head`` on SmolLM2 (EAGLE-3, 2,048 tokens, features
    of int8, one thread, AMD EPYC) then took 3.5 s of processor time instead of 2.8.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is None:
        return
    for parameter, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 2**28)):
        mallopt(parameter, value)


def give_back_freed_memory() -> None:
    """Give all freed pages back to the system, once; this needs glibc.

    Sizes depend on how many tokens count, which differs between windows. So freed pieces, between small ones that stay,
    are too short for the next step, and the heap grows: with 1,024 tokens a step the training above held 1.8 GB after
    one step and 3.9 GB after 44, still growing; with memory given back every 16 steps it held 1.3 to 3.1 GB.

    Cost: a third of a step, most of it in the next one, which maps its pages again.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _of_glibc(name: str) -> Callable[..., Any] | None:
    """Return a function of glibc; None: the C library is another one, or lacks it."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
