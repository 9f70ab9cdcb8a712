"""Tiles: the fixed number of rows in which a pass computes if its bits must not depend on its shape."""

from collections.abc import Callable
from itertools import repeat

import torch
from torch import Tensor
from torch.nn import functional

# Libraries choose a product's kernel, and so the order of its sums, by its shape: one shape, one order. A product of
# this many rows still takes about as long as reading its weights.
TILE = 64


def pad_to_tiles(rows: Tensor, value: int = 0) -> Tensor:
    """Return ``[N, ...]`` padded to whole tiles with ``value``."""
    missing = -len(rows) % TILE
    return functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing), value=value) if missing else rows


def by_tiles(part: Callable[..., Tensor], *rows: Tensor | None) -> Tensor:
    """Return what ``part`` makes of rows, each ``[N, ...]`` or None, a tile at a time: ``[N, ...]``.

    All tiles pass through one part before the next, so that its weights are still in cache.
    """
    tiles = [repeat(None) if given is None else torch.split(pad_to_tiles(given), TILE) for given in rows]
    # Absent rows have no end; the others have as many tiles.
    made = [part(*given) for given in zip(*tiles, strict=False)]
    count = next(len(given) for given in rows if given is not None)
    return (made[0] if len(made) == 1 else torch.cat(made))[:count]
