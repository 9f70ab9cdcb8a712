"""The threads of the native pass: torch's own, on torch's own OpenMP runtime."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

import torch

from oracles.native.bindings import Team

# The fields of ``Team``: the first runs work on a number of threads, the others are called inside that work.
ENTRY_POINTS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
LIBRARY = "libtorch_cpu.so"

_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def num_threads() -> int:
    """Return how many threads a pass may use: as many as torch, or 1 if no team may start.

    It is 1 without an OpenMP runtime, and in a process that was forked after this module was imported. The parent may
    have started threads that the child lacks, and the child's first parallel region would wait for them for ever.
    Torch's own regions would wait too, so in such a child torch is set to one thread, as in torch's data loaders.

    Ask ``GOMP_parallel`` for exactly this number, or work without it on one thread: libgomp ends the threads that a
    smaller region leaves out, and torch's next operation has to start them again.
    """
    return 1 if _forked or team() is None else torch.get_num_threads()


@cache
def team() -> Team | None:
    """Return the entry points of torch's OpenMP runtime; None if it lacks them or torch runs on none.

    Several runtimes may be loaded (torch's wheel, scikit-learn's and scipy's bring one each). Names are looked up where
    the dynamic linker finds those of libtorch_cpu: in the global scope (a preloaded runtime, or torch's own, which
    torch puts there), then among the libraries that libtorch_cpu depends on.
    """
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    return next((found for scope in _scopes() if (found := _entry_points(scope)) is not None), None)


def _scopes() -> Iterator[ctypes.CDLL]:
    """Yield the global scope, then libtorch_cpu with its dependencies; nothing new is loaded."""
    yield ctypes.CDLL(None)
    with suppress(OSError):  # a torch built as one library has no library of that name
        yield ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD)


def _entry_points(scope: ctypes.CDLL) -> Team | None:
    """Return the entry points that a scope has; None if one is missing, or they are not all of one library."""
    try:
        addresses = [ctypes.cast(getattr(scope, name), ctypes.c_void_p).value for name in ENTRY_POINTS]
    except AttributeError:
        return None
    found = [address for address in addresses if address is not None]
    same = len({file_of(address) for address in found}) == 1
    return Team(*found) if same and len(found) == len(ENTRY_POINTS) else None


class _Symbol(ctypes.Structure):
    """The structure that ``dladdr`` fills in."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def file_of(address: int) -> str:
    """Return the library that contains an address of code, "" if none does."""
    found = _Symbol()
    known = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(found))
    return os.fsdecode(found.file) if known else ""
