"""Where features of ragged rows come from, and where they go in a cache."""

import numpy as np
import torch
from torch import Tensor

from specdec.cache import PagedCache
from specdec.contracts import IntArray
from specdec.transfers import on_device


def real_positions(
    cache: PagedCache, rows: IntArray, first: IntArray, counts: IntArray, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Return, for each of P real positions, its line, its slot, its place ``[b, i]`` among features; None: P is 0.

    Args:
        cache: says in which line of its memory a slot lies.
        rows: ``[B]`` of its rows.
        first: ``[B]`` the slot of the first position of each.
        counts: ``[B]`` positions of each.
        device: where indices are put, in one copy.
    """
    at, column = np.nonzero(np.arange(int(counts.max())) < counts[:, None])
    if not at.size:
        return None
    slots = first[at] + column
    line, slot, at_row, at_column = on_device(
        np.stack([cache.lines(rows[at], slots), slots, at, column]), device
    ).unbind()
    return line, slot, at_row, at_column
