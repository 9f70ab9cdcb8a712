"""Looking up what followed earlier occurrences, in one call of compiled code: ``lookups.h`` in Python."""

import ctypes
from struct import Struct

import numpy as np

from specdec.native.laws import once
from specdec.native.memory import Integers, place

_I64, _POINTER = ctypes.c_int64, ctypes.c_void_p
_SEARCH = Struct("5q")  # the structure `Search`


class NativeLookups:
    """The function of the compiled library; see ``drafts.PromptLookup`` for what it looks for.

    Args:
        built: the library.
    """

    def __init__(self, built: ctypes.CDLL) -> None:
        self._lookups = built.specdec_lookups
        self._lookups.restype = None
        self._lookups.argtypes = (_POINTER, _POINTER, _POINTER, _POINTER, _I64, _I64, _I64, _POINTER)

    def __call__(
        self, search: bytes, ids: Integers, sizes: Integers, limits: Integers
    ) -> tuple[Integers, Integers, Integers]:
        """Return the ids to copy ``[B, N]``, zeros beyond their counts ``[B]``, and lengths of the matches ``[B]``.

        Args:
            search: from ``packed_search``.
            ids: ``[B, L]``; columns from ``sizes[b]`` on are ignored.
            sizes: ``[B]``, 1..L.
            limits: ``[B]`` ids to copy at most; N is the largest.

        Raises:
            ValueError: sizes or limits of another type or number, or sizes beyond the ids.

        Cost: O(L ``max_ngram``) a row.
        """
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        (rows, stride), width = ids.shape, max(limits.tolist(), default=0)
        if not sizes.dtype == limits.dtype == np.int64 or not sizes.shape == limits.shape == (rows,):
            raise ValueError(
                f"lookups in {rows} rows take as many sizes and limits, int64: {sizes.dtype} {sizes.shape} and "
                f"{limits.dtype} {limits.shape} were given"
            )
        ends = sizes.tolist()
        if not 0 <= min(ends, default=0) <= max(ends, default=0) <= stride:
            raise ValueError(f"sizes {ends} must lie in 0..{stride}, the width of ids")
        out = np.empty(rows * (width + 2), dtype=np.int64)
        self._lookups(search, place(ids), sizes.tobytes(), limits.tobytes(), rows, stride, width, place(out))
        end = rows * width
        return out[:end].reshape(rows, width), out[end : end + rows], out[end + rows : end + 2 * rows]


def packed_search(max_ngram: int, min_ngram: int, min_continuation: int, is_last: bool, wrap: bool) -> bytes:
    """Return what is looked for, as ``drafts.PromptLookup`` names it."""
    return _SEARCH.pack(max_ngram, min_ngram, min_continuation, is_last, wrap)


compiled_lookups = once(NativeLookups)
