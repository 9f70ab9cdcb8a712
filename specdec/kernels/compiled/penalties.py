"""Penalties on the CPU, one call of compiled code: ``penalties.h`` in Python."""

import ctypes
from struct import Struct

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.kernels.compiled.laws import NATIVE_DTYPES
from specdec.kernels.compiled.memory import place

_I64, _POINTER = ctypes.c_int64, ctypes.c_void_p
_BEFORE = Struct("10q")  # the structure `Before`


class NativePenalties:
    """The function of the compiled library.

    Args:
        built: the library.
    """

    def __init__(self, built: ctypes.CDLL) -> None:
        self._penalise = built.specdec_penalise
        self._penalise.restype, self._penalise.argtypes = _I64, (_POINTER, _POINTER, _I64, _POINTER)

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
        (rows, nodes, size), (_, stride), (_, width) = logits.shape, ids.shape, drafted.shape
        shapes = ids.shape, stands.shape, produced.shape, strengths.shape, drafted.shape, paths.shape
        wanted = (*[(rows, stride)] * 3, (3, rows), (rows, width), (rows, nodes, width))
        types = [ids.dtype == np.int64, strengths.dtype == np.float64, stands.dtype == produced.dtype == np.bool_]
        types += [logits.dtype in NATIVE_DTYPES, drafted.dtype == torch.int64, paths.dtype == torch.bool]
        lies_here = logits.is_cpu and drafted.is_cpu and paths.is_cpu and logits.is_contiguous()
        if shapes != wanted or not all(types) or not lies_here:
            raise ValueError(
                f"penalties of logits {logits.dtype} {tuple(logits.shape)} on {logits.device} take ids, stands, "
                f"produced, strengths, drafted and paths of shapes {wanted} there, not {tuple(map(tuple, shapes))}"
            )
        drafted, paths = drafted.contiguous(), paths.contiguous()
        arrays = [np.ascontiguousarray(array) for array in (ids, stands, produced)]
        places = *map(place, arrays), drafted.data_ptr(), paths.data_ptr()
        struct = _BEFORE.pack(*places, rows, stride, nodes, width, size)
        if self._penalise(struct, strengths.tobytes(), logits.dtype == torch.float64, logits.data_ptr()):
            raise IndexError(f"an id that stands or is drafted lies beyond the {size} of the vocabulary")
