"""Tiles: the fixed number of rows in which a pass computes if its bits must not depend on its shape."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional

from oracles.attention import Attend
from oracles.blocks import Block
from oracles.rotary import Rope

# Libraries choose a product's kernel, and so the order of its sums, by its shape: one shape, one order. A product of as
# many rows still takes about the time that reading its weights does.
TILE = 64


def padded(rows: Tensor, value: int = 0) -> Tensor:
    """Return ``[N, ...]`` as whole tiles, the last one filled up with ``value``."""
    missing = -len(rows) % TILE
    return functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing), value=value) if missing else rows


def by_tiles(compute: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Return what ``compute`` makes of rows ``[N, X]``, a tile at a time: ``[N, Y]``."""
    return torch.cat([compute(tile) for tile in torch.split(padded(rows), TILE)])[: len(rows)]


def layer_by_tiles(block: Block, x: Tensor, rope: Rope, attend: Attend) -> Tensor:
    """Return the residual stream after a layer, all but its attention computed a tile at a time.

    Args:
        block: the layer.
        x: ``[N, hidden]``, whole tiles.
        rope: of the N nodes.
        attend: takes all N nodes at once.
    """
    streams = torch.split(x, TILE)
    ropes: Iterable[Rope] = (
        torch.split(rope, TILE)
        if isinstance(rope, Tensor)
        else zip(torch.split(rope[0], TILE), torch.split(rope[1], TILE), strict=True)
    )
    parts = [block.before(*given) for given in zip(streams, ropes, strict=True)]
    query, key, value = (torch.cat(same) for same in zip(*parts, strict=True))
    found = attend(block.self_attn.layer, query, key, value)
    return torch.cat([block.after(*given) for given in zip(torch.split(found, TILE), streams, strict=True)])
