"""How a pass reads the pages of its rows: in place, in a few pieces, or copied side by side."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec.cache import PAGE, TensorMemory
from specdec.contracts import IntArray


class PageViews(NamedTuple):
    """Keys and values of some rows, in the pieces that are multiplied separately.

    Attributes:
        pieces: ``[layers, 2, M, T, D]`` each. Side by side they hold the rows of every key head, or the key heads of
            every row if ``rows_first``.
        rows_first: see ``pieces``.
        room: ``[2, K * B, T, D]``, the memory of the only piece if pages are copied, layer by layer; else None.
    """

    pieces: list[Tensor]
    rows_first: bool
    room: Tensor | None


def view_pages(memory: TensorMemory, pages: IntArray) -> PageViews:
    """Return views of the slots of rows, as few as the order of their pages allows.

    Rows whose pages lie side by side are read in place. All key heads of all rows are one piece if the rows lie at
    equal distances through the whole memory. Else there is a piece for each key head, if the rows lie at equal
    distances, or one for each row, whichever are fewer. Other pages must be copied, by ``copy_pages``.

    Args:
        memory: of ``[layers, 2, K, lines, D]``.
        pages: ``[B, T / 16]`` of each row.
    """
    lines, (batch, count) = memory.lines, pages.shape
    layers, _, heads, num_lines, size = lines.shape
    first = pages[:, 0].tolist()
    if (pages != pages[:, :1] + np.arange(count)).any():
        room = lines.new_empty(2, heads * batch, count * PAGE, size)
        return PageViews([room.expand(layers, -1, -1, -1, -1)], False, room)
    step = _step_of(first) * PAGE
    fill_heads = step * batch == num_lines
    if not step or (batch <= heads and not fill_heads):
        return PageViews([lines.narrow(3, page * PAGE, count * PAGE) for page in first], True, None)
    shape, stride = (layers, 2, heads, batch, count * PAGE, size), lines.stride()
    there = lines.as_strided(
        shape, (*stride[:3], step * size, *stride[3:]), lines.storage_offset() + first[0] * PAGE * size
    )
    return PageViews([there.flatten(2, 3)] if fill_heads else list(there.unbind(2)), False, None)


def copy_pages(memory: TensorMemory, layer: int, pages: Tensor, room: Tensor) -> None:
    """Copy the pages ``[B * T / 16]`` of a layer side by side, to ``[2, K * B, T, D]``."""
    by_page = memory.by_page()[layer]
    # [2, K, B * T / 16, 16, D]
    shape = (*by_page.shape[:2], len(pages), *by_page.shape[3:])
    torch.index_select(by_page, 2, pages, out=room.view(shape))


def _step_of(first: list[int]) -> int:
    """Return the distance, in pages, of rows whose first pages are ``first``; 0: one row, or unequal distances."""
    steps = {after - before for before, after in pairwise(first)}
    step = steps.pop() if len(steps) == 1 else 0
    return max(step, 0)
