"""Penalties on the CPU, one call of compiled code: ``penalties.h`` in Python."""

import ctypes

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specdec.kernels.compiled.build import HEADERS
from specdec.kernels.compiled.schema import kind_of, structure

_Before = structure(HEADERS / "penalties.h", "Before")


class NativePenalties:
    """The function of the compiled library.

    Args:
        built: the library.
    """

    def __init__(self, built: ctypes.CDLL) -> None:
        self._penalise = built.specdec_penalise
        self._penalise.restype, self._penalise.argtypes = ctypes.c_int64, (ctypes.c_void_p,)

    def __call__(
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
