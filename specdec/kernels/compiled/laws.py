"""Laws and draws on the CPU, a call of compiled code each: ``laws.h``, ``draws.h`` and ``laws.cpp`` in Python."""

import ctypes
from struct import Struct
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.kernels.compiled.build import HEADERS, Unit, library
from specdec.kernels.compiled.memory import Integers
from specdec.kernels.compiled.schema import kind_of, structure

LAWS = Unit("the native laws", HEADERS / "laws.cpp", (HEADERS,))
NATIVE_DTYPES = (torch.float32, torch.float64)

_I64, _POINTER = ctypes.c_int64, ctypes.c_void_p
_Warp, _Drawing = (structure(LAWS.source, name) for name in ("Warp", "Drawing"))
_Before = structure(HEADERS / "penalties.h", "Before")
NEUTRAL: dict[str, float] = structure(HEADERS / "laws.h", "Sampling").neutral
FILTERS = tuple(NEUTRAL)
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
        self._laws, self._draw, self._race = built.specdec_laws, built.specdec_draw, built.specdec_race
        self._entropies, self._penalise = built.specdec_entropies, built.specdec_penalise
        self._laws.restype, self._draw.restype, self._race.restype, self._entropies.restype = None, _I64, _I64, None
        self._entropies.argtypes = (_POINTER, _I64, _I64, _I64, _POINTER)
        self._penalise.restype, self._penalise.argtypes = _I64, (_POINTER,)
        self._laws.argtypes = (_POINTER,)
        self._draw.argtypes = (_POINTER, _POINTER, _I64, _I64, _I64, _POINTER, _I64)
        self._race.argtypes = (_POINTER, _POINTER, _POINTER, _I64, _POINTER, _I64)

    def laws(self, logits: Tensor, filters: NDArray[np.float64]) -> Tensor:
        """Return the laws of logits ``[R, M, V]`` in their type, one of NATIVE_DTYPES; NaN if the logits allow no law.

        Args:
            logits: see ``specdec.kernels.Kernels.laws``.
            filters: ``[F, R]`` a row for each of FILTERS; temperatures are above 0.

        Raises:
            ValueError: there are not so many numbers, or logits of another type or device.

        Cost: O(R M V) time, O(V) memory beside the laws.
        """
        rows, nodes, size = logits.shape
        table = torch.empty(logits.shape, dtype=logits.dtype, device="cpu")
        sizes = {"rows": rows, "nodes": nodes, "size": size, "filters": len(FILTERS)}
        warp = _Warp.of(sizes, kind_of(logits), logits=logits, filters=filters, table=table)
        self._laws(ctypes.byref(warp))
        return table

    def entropies(self, table: Tensor) -> Tensor:
        """Return the entropies ``[R]`` in nats, float64, of laws ``[R, V]`` of one of NATIVE_DTYPES on the CPU.

        Raises:
            ValueError: laws of another type or device.
        """
        if not table.is_cpu:
            raise ValueError(f"native laws are on the CPU, not on {table.device}")
        is_double, table = kind_of(table).of_tensors is torch.float64, table.contiguous()
        found = torch.empty(len(table), dtype=torch.float64, device="cpu")
        self._entropies(table.data_ptr(), is_double, *table.shape, found.data_ptr())
        return found

    def draw(self, laws: Table, k: int, path: bytes, streams: int, purpose: int, node: Any) -> Tensor:
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
        drawing, ids = _drawing(laws, k, streams)
        nodes, period = _repeat(node, laws[1].shape)
        fault = self._draw(ctypes.byref(drawing), path, len(path) // 8, streams, purpose, nodes, period)
        _check_index(fault, laws)
        return ids

    def race(self, laws: Table, k: int, keys: bytes, positions: bytes, streams: int, depth: Any) -> Tensor:
        """Return draws by races that are keyed by position, as ``specdec.sampling.randomness.Coupled.choose`` does.

        Args:
            laws, k, streams: see ``draw``.
            keys, positions: an int64 for each stream.
            depth: broadcast to the laws' shape, and added to the positions.

        Raises:
            ValueError, IndexError: see ``draw``.
        """
        if not len(keys) == len(positions) == 8 * streams:
            raise ValueError(f"{streams} streams take as many keys and positions")
        drawing, ids = _drawing(laws, k, streams)
        depths, period = _repeat(depth, laws[1].shape)
        _check_index(self._race(ctypes.byref(drawing), keys, positions, streams, depths, period), laws)
        return ids

    def penalise(
        self,
        logits: Tensor,
        ids: NDArray[np.int64],
        stands: NDArray[np.bool_],
        produced: NDArray[np.bool_],
        drafted: Tensor,
        paths: Tensor,
        strengths: NDArray[np.float64],
    ) -> None:
        """Change logits in place, as ``specdec.kernels.Kernels.penalise`` says.

        Args:
            logits: ``[R, M, V]`` of one of NATIVE_DTYPES, contiguous on the CPU.
            ids: ``[R, L]``.
            stands, produced: ``[R, L]`` which of them count, and which of these are output.
            drafted: ``[R, N]`` int64 ids.
            paths: ``[R, M, N]`` bool which of them lie on a node's path.
            strengths: ``[3, R]`` the repetition, presence and frequency penalties.

        Raises:
            ValueError: shapes or types that do not fit.
            IndexError: an id beyond the vocabulary.

        Cost: O(L) a row and O(L + N) a node, and O(V) memory.
        """
        (rows, nodes, size), stride, width = logits.shape, ids.shape[-1], drafted.shape[-1]
        before = _Before.of(
            {"rows": rows, "stride": stride, "nodes": nodes, "width": width, "size": size}, kind_of(logits),
            ids=ids, stands=stands, produced=produced, drafted=drafted, paths=paths, strengths=strengths, logits=logits,
        )  # fmt: skip
        if self._penalise(ctypes.byref(before)):
            raise IndexError(f"an id that stands or is drafted lies beyond the {size} of the vocabulary")


def _check_index(fault: int, laws: Table) -> None:
    """Raise IndexError if a draw found an index beyond the table."""
    if fault:
        raise IndexError(f"laws hold index {int(laws[1].max())}, and their table has {len(laws[0])} rows")


def _drawing(laws: Table, k: int, streams: int) -> tuple[Any, Tensor]:
    """Return the structure ``Drawing``, and what is written to: the laws' shape, plus ``[k]`` for k > 1."""
    table, index, point = laws
    shape = index.shape
    if point.shape != shape or not shape or streams not in (1, shape[0]) or k < 1:
        raise ValueError(
            f"{k} draws by {streams} streams from laws of index {tuple(shape)} and point {tuple(point.shape)}"
        )
    rows, size = table.shape
    ids = torch.empty(shape if k == 1 else (*shape, k), dtype=torch.int64, device="cpu")
    entries = index.numel()
    sizes = {"rows": rows, "size": size, "entries": entries, "count": k, "drawn": k * entries}
    return _Drawing.of(sizes, kind_of(table), table=table, index=index, point=point, ids=ids), ids


def _repeat(values: Any, shape: torch.Size) -> tuple[bytes, int]:
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
