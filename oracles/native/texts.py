"""Ids that stand in rows, handed to compiled code."""

import numpy as np

from oracles.native import bindings
from oracles.native.host_memory import INT64, ids_to_bytes
from specdec.contracts import IntArray
from specdec.kernels.compiled import place


def text_of(ids: IntArray, ends: IntArray, batch: int) -> bindings.Text:
    """Return what stands in the rows of a call, which holds the memory that it points to.

    Args:
        ids: ``[B, L]``.
        ends: ``[B]`` how many of them do.
        batch: B.

    Raises:
        ValueError: they are of other shapes, no integers, or no arrays.

    Cost: none for whole rows of int64; else a copy of ``ids``.
    """
    if not isinstance(ids, np.ndarray) or ids.ndim != 2 or len(ids) != batch or ids.dtype.kind not in "iu":
        given = f"{ids.dtype} of shape {ids.shape}" if isinstance(ids, np.ndarray) else f"a {type(ids).__name__}"
        raise ValueError(f"ids must be an array of the host of integers [{batch}, L], not {given}")
    whole = ids if ids.dtype == INT64 and ids.flags.c_contiguous else np.ascontiguousarray(ids, INT64)
    text = bindings.Text(place(whole), ids_to_bytes(ends, (batch,)), ids.shape[1])
    text.whole = whole
    return text
