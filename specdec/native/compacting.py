"""Trees of one plan without their absent nodes, in one call of compiled code: ``compacting.h`` in Python."""

import ctypes
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec.native.laws import once
from specdec.native.memory import Integers, integers, place

_POINTER = ctypes.c_void_p
_PLANNED = Struct("8q")  # the structure `Planned`


class Standing(NamedTuple):
    """The nodes of trees that are present, W in the largest of them.

    Attributes:
        num_nodes: ``[B]``.
        tokens: ``[B, W]``, 0 for padding.
        parents: ``[B, W]``; padding goes on as a chain.
        law: ``[B, W]`` the law that each id comes of, -1 for padding.
        is_real: ``[B, W]`` bool.
    """

    num_nodes: Integers
    tokens: Integers
    parents: Integers
    law: Integers
    is_real: NDArray[np.bool_]


class NativeCompacting:
    """The function of the compiled library.

    Args:
        built: the library.
    """

    def __init__(self, built: ctypes.CDLL) -> None:
        self._compact = built.specdec_compact
        self._compact.restype, self._compact.argtypes = ctypes.c_int64, (_POINTER, _POINTER, _POINTER)

    def __call__(
        self, ids: Integers, parents: Integers, owners: Integers, num_laws: int, places: Integers, batch: int
    ) -> Standing:
        """Return the trees of a batch.

        Args:
            ids: ``[R, N]``, -1 where a node is absent, and so is all below it.
            parents: ``[N]`` an earlier node, or -1: the pending token.
            owners: ``[N]`` which of its row's laws each id comes of.
            num_laws: of a row; those of row r are numbered from r ``num_laws`` on.
            places: ``[R]`` which rows of the batch these are.
            batch: B; the other rows have no node.

        Raises:
            ValueError: shapes, parents or places that do not fit, or ids of another type.

        Cost: O(R N + B W).
        """
        rows, size = ids.shape
        given = [np.ascontiguousarray(array) for array in (ids, parents, owners, places)]
        kinds = [(array.dtype.name, array.shape) for array in given]
        if kinds != [("int64", shape) for shape in ((rows, size), (size,), (size,), (rows,))]:
            raise ValueError(f"ids, parents, owners and places must be int64 of one plan and its rows, not {kinds}")
        (memory, numbers), is_real = integers(batch * (1 + 3 * size)), np.empty(batch * size, dtype=np.bool_)
        struct = _PLANNED.pack(*map(place, given), rows, size, num_laws, batch)
        width = self._compact(struct, memory, place(is_real))
        if width < 0:
            raise ValueError(f"parents {parents} must stand above their nodes, and places {places} below {batch}")
        tokens, above, law = numbers[batch : batch * (1 + 3 * width)].reshape(3, batch, width)
        return Standing(numbers[:batch], tokens, above, law, is_real[: batch * width].reshape(batch, width))


compiled_compacting = once(NativeCompacting)
