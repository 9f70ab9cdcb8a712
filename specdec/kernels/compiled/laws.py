"""Laws and draws on the CPU, a call of compiled code each: ``laws.h``, ``draws.h`` and ``laws.cpp`` in Python."""

import ctypes
from struct import Struct
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.kernels.compiled.build import HEADERS, Unit, library
from specdec.kernels.compiled.memory import Integers

LAWS = Unit("the native laws", HEADERS / "laws.cpp", (HEADERS,))
NATIVE_DTYPES = (torch.float32, torch.float64)

_I64, _POINTER = ctypes.c_int64, ctypes.c_void_p
# The structure `Drawing`. Small arrays are handed over as bytes: that costs less than to ask numpy for an address.
_DRAWING = Struct("9q")
_NUMBER = Struct("q")

Table = tuple[Tensor, Tensor, Tensor]


class NativeLaws:
    """The functions of the compiled library. Tensors are contiguous or copied; all lie on the CPU.

    Args:
        built: the library.

    Guarantee: bits are the same on every supported machine, and those of a row do not depend on the other rows. Calls
        may run at once in several threads.
    """

    def __init__(self, built: ctypes.CDLL) -> None:
        self._laws, self._keyed, self._raced = built.specdec_laws, built.specdec_keyed, built.specdec_raced
        self._entropies = built.specdec_entropies
        self._laws.restype, self._keyed.restype, self._raced.restype, self._entropies.restype = None, _I64, _I64, None
        self._entropies.argtypes = (_POINTER, _I64, _I64, _I64, _POINTER)
        self._laws.argtypes = (_POINTER, _I64, _I64, _I64, _I64, _POINTER, _POINTER)
        self._keyed.argtypes = (_POINTER, _POINTER, _I64, _I64, _I64, _POINTER, _I64)
        self._raced.argtypes = (_POINTER, _POINTER, _POINTER, _I64, _POINTER, _I64)

    def laws(self, logits: Tensor, sampling: bytes) -> Tensor:
        """Return the laws of logits ``[R, M, V]`` in their type, one of NATIVE_DTYPES; NaN if the logits allow no law.

        Args:
            logits: see ``specdec.kernels.Kernels.laws``.
            sampling: four lists of ``R`` float64: temperatures above 0, top_k, top_p and min_p.

        Raises:
            ValueError: there are not so many numbers, or logits of another type or device.

        Cost: O(R M V) time, O(V) memory beside the laws.
        """
        rows, nodes, size = logits.shape
        if len(sampling) != 32 * rows:
            raise ValueError(f"{rows} rows of logits take {4 * rows} sampling parameters, not {len(sampling) / 8:g}")
        logits = given(logits)
        table = torch.empty_like(logits)
        is_double = logits.dtype == torch.float64
        self._laws(logits.data_ptr(), is_double, rows, nodes, size, sampling, table.data_ptr())
        return table

    def entropies(self, table: Tensor) -> Tensor:
        """Return the entropies ``[R]`` in nats, float64, of laws ``[R, V]`` of one of NATIVE_DTYPES.

        Raises:
            ValueError: laws of another type or device.
        """
        table = given(table)
        found = torch.empty(len(table), dtype=torch.float64, device="cpu")
        self._entropies(table.data_ptr(), table.dtype == torch.float64, *table.shape, found.data_ptr())
        return found

    def keyed(self, laws: Table, k: int, path: bytes, streams: int, purpose: int, node: Any) -> Tensor:
        """Return draws by independent streams, as ``specdec.sampling.randomness.Keyed.choose`` does.

        Args:
            laws: table ``[R, V]``, of one of NATIVE_DTYPES, index and point of ``specdec.laws.Laws``.
            k: ids for each.
            path: int64: a seed for each stream, then the parts that it is extended by, each after its length.
            streams: how many, 1 or the laws' first dimension.
            purpose: its code.
            node: broadcast to the laws' shape.

        Raises:
            ValueError: shapes do not fit.
            IndexError: an index beyond the table.
        """
        laws = _whole(laws)
        drawing, ids = _drawing(laws, k, streams)
        nodes, period = _repeated(node, laws[1].shape)
        self._checked(self._keyed(drawing, path, len(path) // 8, streams, purpose, nodes, period), laws)
        return ids

    def raced(self, laws: Table, k: int, keys: bytes, positions: bytes, streams: int, depth: Any) -> Tensor:
        """Return draws by races that are keyed by position, as ``specdec.sampling.randomness.Coupled.choose`` does.

        Args:
            laws, k, streams: see ``keyed``.
            keys, positions: an int64 for each stream.
            depth: broadcast to the laws' shape, and added to the positions.

        Raises:
            ValueError, IndexError: see ``keyed``.
        """
        if not len(keys) == len(positions) == 8 * streams:
            raise ValueError(f"{streams} streams take as many keys and positions")
        laws = _whole(laws)
        drawing, ids = _drawing(laws, k, streams)
        depths, period = _repeated(depth, laws[1].shape)
        self._checked(self._raced(drawing, keys, positions, streams, depths, period), laws)
        return ids

    @staticmethod
    def _checked(fault: int, laws: Table) -> None:
        if fault:
            raise IndexError(f"laws hold index {int(laws[1].max())}, and their table has {len(laws[0])} rows")


def given(numbers: Tensor) -> Tensor:
    if numbers.dtype not in NATIVE_DTYPES or not numbers.is_cpu:
        raise ValueError(f"native laws are of float32 or float64 on the CPU, not {numbers.dtype} on {numbers.device}")
    return numbers.contiguous()


def _whole(laws: Table) -> Table:
    table, index, point = laws
    return table.contiguous(), index.contiguous(), point.contiguous()


def _drawing(laws: Table, k: int, streams: int) -> tuple[bytes, Tensor]:
    """Return the structure ``Drawing``, and what is written to: the laws' shape, plus ``[k]`` for k > 1."""
    table, index, point = laws
    shape = index.shape
    if point.shape != shape or not shape or streams not in (1, shape[0]) or k < 1:
        raise ValueError(
            f"{k} draws by {streams} streams from laws of index {tuple(shape)} and point {tuple(point.shape)}"
        )
    ids = torch.empty_like(index) if k == 1 else torch.empty((*shape, k), dtype=torch.int64, device="cpu")
    places = table.data_ptr(), index.data_ptr(), point.data_ptr(), ids.data_ptr()
    return _DRAWING.pack(*places, table.dtype == torch.float64, *table.shape, index.numel(), k), ids


def _repeated(values: Any, shape: torch.Size) -> tuple[bytes, int]:
    """Return int64 numbers that broadcast to a shape, and after how many of its entries they repeat."""
    if isinstance(values, int):
        return _NUMBER.pack(values), 1
    array: Integers = np.asarray(values, dtype=np.int64)
    if array.shape != tuple(shape[len(shape) - array.ndim :]):
        array = np.broadcast_to(array, tuple(shape))
    return array.tobytes(), array.size


def laws_library() -> ctypes.CDLL:
    """Return the library of laws, draws, penalties and walks.

    Raises:
        NativeUnavailable: this machine cannot have it.
    """
    return library(LAWS)
