"""What computes laws and draws by compiled code, if numbers lie on the CPU in a type that it reads.

``laws.h``, ``draws.h``, ``penalties.h`` and ``laws.cpp`` in Python; verdicts are in ``compiled/walks.py``.
"""

from collections.abc import Callable
from ctypes import CDLL, byref, c_int64, c_void_p
from functools import cache
from struct import Struct
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import Adjustments, FloatArray, IntArray
from specdec.kernels.compiled import (
    FILTERS,
    HEADERS,
    LAWS,
    NATIVE_DTYPES,
    NEUTRAL,
    NativeUnavailable,
    NativeWalks,
    library,
)
from specdec.kernels.compiled.schema import kind_of, structure
from specdec.kernels.draws import Streams
from specdec.kernels.reference import Filters, Kernels
from specdec.laws import Laws
from specdec.system import warn_once

_UNWARPED = np.array(list(NEUTRAL.values())).reshape(-1, 1)
_Warp, _Drawing = (structure(LAWS.source, name) for name in ("Warp", "Drawing"))
_Before = structure(HEADERS / "penalties.h", "Before")
_NUMBER = Struct("q")


@final
class NativeKernels(Kernels):
    """Compute the same by compiled code on the CPU, for float32 and float64; otherwise as the base class does.

    Args:
        built: the library; None: the one that is shipped.

    Raises:
        NativeUnavailable: this machine cannot have the library; the message says why.

    Guarantee: bits are the same on every supported machine, and those of a row do not depend on the other rows. Keyed
        draws are the reference's ids; a race can differ if two ids tie up to rounding. Calls may run at once in several
        threads.
    """

    name: ClassVar[str] = "native"
    are_compiled: ClassVar[bool] = True

    def __init__(self, built: CDLL | None = None) -> None:
        built = built or library(LAWS)
        self._warp, self._penalise = built.specdec_laws, built.specdec_penalise
        self._draw, self._race, self._entropies = built.specdec_draw, built.specdec_race, built.specdec_entropies
        self._warp.restype, self._warp.argtypes = None, (c_void_p,)
        self._entropies.restype, self._entropies.argtypes = None, (c_void_p, c_int64, c_int64, c_int64, c_void_p)
        self._penalise.restype, self._penalise.argtypes = c_int64, (c_void_p,)
        self._draw.restype = self._race.restype = c_int64
        self._draw.argtypes = (c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64)
        self._race.argtypes = (c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int64)
        self.walks = NativeWalks(built)

    def __reduce__(self) -> tuple[Callable[[], "NativeKernels"], tuple[()]]:
        return native_kernels, ()  # wherever they are unpickled, the library is that machine's own

    def laws(self, logits: Tensor, filters: Filters) -> Tensor:
        """Return the laws of logits ``[R, M, V]``. Cost: O(R M V) time, O(V) memory beside the laws."""
        return self._laws(logits, filters.filters) if _is_read(logits) else super().laws(logits, filters)

    def _laws(self, logits: Tensor, filters: FloatArray) -> Tensor:
        rows, nodes, size = logits.shape
        table = torch.empty(logits.shape, dtype=logits.dtype, device="cpu")
        sizes = {"rows": rows, "nodes": nodes, "size": size, "filters": len(FILTERS)}
        self._warp(byref(_Warp.of(sizes, kind_of(logits), logits=logits, filters=filters, table=table)))
        return table

    def penalise(self, logits: Tensor, tokens: Tensor, mask: Tensor, past: Adjustments) -> None:
        """Apply penalties in place; arguments as in ``Kernels.penalise``.

        Raises:
            IndexError: in a row with penalties an id lies beyond the vocabulary, or more ids are said to stand than
                there are.

        Cost: O(L) a row with penalties and O(L + N) for each of its nodes, O(V) memory.
        """
        if not _is_read(logits):
            super().penalise(logits, tokens, mask, past)
            return
        rows, nodes, size = logits.shape
        before = _Before.of(
            {"rows": rows, "stride": past.ids.shape[-1], "nodes": nodes, "width": tokens.shape[-1], "size": size},
            kind_of(logits), ids=past.ids, ends=past.num_committed, prompts=past.prompt_lengths, drafted=tokens,
            paths=mask, strengths=past.penalties, logits=logits,
        )  # fmt: skip
        if self._penalise(byref(before)):
            told = f"{past.num_committed.tolist()} of {past.ids.shape[-1]} ids stand"
            raise IndexError(f"an id that stands or is drafted lies beyond the {size} of the vocabulary; {told}")

    def draw(self, laws: Laws, k: int, streams: Streams, purpose: int, node: Any) -> Tensor:
        """Return draws along running sums; see ``Kernels.draw``.

        Raises:
            ValueError: shapes do not fit.
            IndexError: an index beyond the table.
        """
        if not _are_read(laws):
            return super().draw(laws, k, streams, purpose, node)
        drawing, ids = _drawing(laws, k, streams.size)
        path, (nodes, period) = streams.path, _repeat(node, laws.shape)
        fault = self._draw(byref(drawing), path, len(path) // 8, streams.size, purpose, nodes, period)
        _check_index(fault, laws)
        return ids

    def race(self, laws: Laws, k: int, keys: IntArray, positions: IntArray, depth: Any) -> Tensor:
        """Return winners of races; see ``Kernels.race``.

        Raises:
            ValueError: shapes do not fit, or there are more keys than positions, or fewer.
            IndexError: an index beyond the table.
        """
        if not _are_read(laws):
            return super().race(laws, k, keys, positions, depth)
        if keys.size != positions.size:
            raise ValueError(f"{keys.size} streams take as many keys and positions")
        drawing, ids = _drawing(laws, k, keys.size)
        depths, period = _repeat(depth, laws.shape)
        fault = self._race(byref(drawing), keys.tobytes(), positions.tobytes(), keys.size, depths, period)
        _check_index(fault, laws)
        return ids

    def softmax(self, logits: Tensor) -> Tensor:
        """Return float64 laws at temperature 1 of logits ``[..., V]``: the bits that a ``ChainWatch`` is told."""
        if not logits.is_cpu:
            return super().softmax(logits)
        return self._laws(logits.double().reshape(1, -1, logits.shape[-1]), _UNWARPED).view_as(logits)

    def entropies(self, probs: Tensor) -> Tensor:
        """Return entropies in nats, float64, of probabilities ``[..., V]``: the bits that a ``ChainWatch`` is told."""
        if not _is_read(probs):
            return super().entropies(probs)
        table = probs.reshape(-1, probs.shape[-1]).contiguous()
        found = torch.empty(probs.shape[:-1], dtype=torch.float64, device="cpu")
        self._entropies(table.data_ptr(), table.dtype is torch.float64, *table.shape, found.data_ptr())
        return found


def _is_read(numbers: Tensor) -> bool:
    return numbers.is_cpu and numbers.dtype in NATIVE_DTYPES


def _are_read(laws: Laws) -> bool:
    is_here = laws.index.is_cpu and laws.point.is_cpu
    return is_here and _is_read(laws.table) and laws.index.dtype == laws.point.dtype == torch.int64


def _check_index(fault: int, laws: Laws) -> None:
    """Raise IndexError if a draw found an index beyond the table."""
    if fault:
        raise IndexError(f"laws hold index {int(laws.index.max())}, and their table has {len(laws.table)} rows")


def _drawing(laws: Laws, k: int, streams: int) -> tuple[Any, Tensor]:
    """Return the structure ``Drawing``, and what is written to: the laws' shape, plus ``[k]`` for k > 1."""
    shape, (rows, size), entries = laws.shape, laws.table.shape, laws.index.numel()
    if laws.point.shape != shape or not shape or streams not in (1, shape[0]) or k < 1:
        raise ValueError(
            f"{k} draws by {streams} streams from laws of index {tuple(shape)} and point {tuple(laws.point.shape)}"
        )
    ids = torch.empty(shape if k == 1 else (*shape, k), dtype=torch.int64, device="cpu")
    sizes = {"rows": rows, "size": size, "entries": entries, "count": k, "drawn": k * entries}
    given = {"table": laws.table, "index": laws.index, "point": laws.point}
    return _Drawing.of(sizes, kind_of(laws.table), **given, ids=ids), ids


def _repeat(values: Any, shape: torch.Size) -> tuple[bytes, int]:
    """Return int64 numbers that broadcast to a shape, and after how many of its entries they repeat."""
    if isinstance(values, int):
        return _NUMBER.pack(values), 1
    array: IntArray = np.asarray(values, dtype=np.int64)
    if array.shape != tuple(shape[len(shape) - array.ndim :]):
        array = np.broadcast_to(array, tuple(shape))
    return array.tobytes(), array.size


@cache
def native_kernels() -> NativeKernels:
    """Return the compiled kernels, made once in a process.

    Raises:
        NativeUnavailable: this machine cannot have them.
    """
    return NativeKernels()


REFERENCE = Kernels()


def best_kernels() -> Kernels:
    """Return the compiled kernels, or the reference, with one warning that says why, if they are not available."""
    try:
        return native_kernels()
    except NativeUnavailable as error:
        warn_once(f"specdec: laws and draws are torch operations, which take longer: {error}")
        return REFERENCE


def resolve_kernels(kernels: str | None, device: torch.device) -> Kernels:
    """Return kernels by name, "native" or "reference", or the best available for None.

    Args:
        kernels: their name.
        device: of the oracle; what lies on a device is computed there by torch operations, whatever the kernels.

    Raises:
        ValueError: there are none of that name, this machine cannot have compiled ones, or the oracle lies elsewhere.
    """
    if kernels is None:
        return best_kernels()
    if kernels == "reference":
        return REFERENCE
    if kernels != "native":
        raise ValueError(f"kernels must be 'native', 'reference' or None (native where it can be had), not {kernels!r}")
    if device.type != "cpu":
        raise ValueError(f"kernels='native' computes on the CPU, and the oracle is on {device}; leave kernels out")
    try:
        return native_kernels()
    except NativeUnavailable as error:
        raise ValueError(f"kernels='native' cannot be had here: {error}; use kernels='reference'") from error
