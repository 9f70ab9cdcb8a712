"""Where features of ragged rows come from, and where they go in a cache."""

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import IntArray
from specdec.transfers import on_device


def real_positions(
    rows: IntArray, first: IntArray, counts: IntArray, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Return, for each of P real positions, its row, its slot, its place ``[b, i]`` among features; None: P is 0.

    Args:
        rows: ``[B]`` cache rows.
        first: ``[B]`` the slot of the first position of each.
        counts: ``[B]`` positions of each.
        device: where indices are put, in one copy.
    """
    at, column = np.nonzero(np.arange(int(counts.max())) < counts[:, None])
    if not at.size:
        return None
    row, slot, at_row, at_column = on_device(np.stack([rows[at], first[at] + column, at, column]), device).unbind()
    return row, slot, at_row, at_column
