"""The threads of the native pass: those that torch has already, on torch's own OpenMP runtime."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

import torch

from oracles.native.bindings import Team

# Those of ``Team``: the first runs a piece of work on so many threads, the others are asked inside of it.
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
    """Return how many threads a pass may use: as many as torch, or 1 where no team may start.

    It is 1 without an OpenMP runtime, and in a process that was forked after this module was imported. The parent may
    have started threads that the child lacks, and the child's first parallel region would wait for them for ever. So
    would torch's own, so in such a child torch is set to one thread, as its data loaders do in theirs.

    Ask ``GOMP_parallel`` for just this number, or work without it on one thread: libgomp ends the threads that a
    smaller region leaves out, and torch's next operation has to start them again.
    """
    return 1 if _forked or team() is None else torch.get_num_threads()


@cache
def team() -> Team | None:
    """Return the entry points of the OpenMP runtime that torch runs on; None if torch runs on none that has them.

    Several runtimes may be loaded (torch's wheel, scikit-learn's and scipy's bring one each). Names are looked up where
    the dynamic linker looks for those that libtorch_cpu uses: in the global scope (a preloaded runtime; torch's own,
    which torch puts there), then among the libraries that libtorch_cpu names.
    """
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    return next((found for scope in _scopes() if (found := _entry_points(scope)) is not None), None)


def _scopes() -> Iterator[ctypes.CDLL]:
    """Yield the global scope, then libtorch_cpu with what it depends on; nothing is loaded that was not."""
    yield ctypes.CDLL(None)
    with suppress(OSError):  # a torch that is built as one library has none of that name
        yield ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD)


def _entry_points(scope: ctypes.CDLL) -> Team | None:
    """Return the entry points as a scope has them; None if one is missing, or they are not of the same library."""
    try:
        addresses = [ctypes.cast(getattr(scope, name), ctypes.c_void_p).value for name in ENTRY_POINTS]
    except AttributeError:
        return None
    found = [address for address in addresses if address is not None]
    same = len({file_of(address) for address in found}) == 1
    return Team(*found) if same and len(found) == len(ENTRY_POINTS) else None


class _Symbol(ctypes.Structure):
    """What ``dladdr`` fills in."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def file_of(address: int) -> str:
    """Return the library that an address of code lies in, "" where it is in none."""
    found = _Symbol()
    known = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(found))
    return os.fsdecode(found.file) if known else ""
