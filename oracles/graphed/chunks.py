"""Attention in chunks of positions, by operations whose shapes depend only on the model."""

import math

import torch
from torch import Tensor

from oracles.graphed.graphed_nodes import PassNodes
from oracles.graphed.tiles import TILE, by_tiles, pad_to_tiles

# Positions of a chunk; the first one begins at position 0.
CHUNK = 256


class ChunkedAttention:
    """Attend from tiles of nodes to chunks of positions, which are combined one after the other.

    A node's keys, including those of its ancestors in a tree, are in the order of their positions: they are gathered
    for every node. So all products and sums have one shape, whatever the batch, the width, the tree and the capacity.

    Args:
        nodes: those of the pass.

    Guarantee: a node's result depends bitwise on nothing but its query and the keys and values on its path, if the
        library's products of one shape have the same bits in every place of a batch.

    Cost: O(R W C) per head, with C the slots of a row, and as many copies of keys and values.
    """

    def __init__(self, nodes: PassNodes) -> None:
        self._nodes = nodes
        size, firsts = (nodes.bucket.rows, nodes.bucket.width), range(0, nodes.memory.capacity, CHUNK)
        parts = [
            pad_to_tiles(nodes.real_positions, -1),
            pad_to_tiles(nodes.start.expand(size).flatten()),
            pad_to_tiles(nodes.rows.unsqueeze(1).expand(size).flatten()),
        ]
        if nodes.paths is not None:
            parts.append(pad_to_tiles(nodes.paths))
        tiles = zip(*(torch.split(part, TILE) for part in parts), strict=True)
        self._tiles = [[_Chunk(nodes, first, *tile) for first in firsts] for tile in tiles]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``[R * W, H * D]`` from ``[R * W, H, D]`` and ``[R * W, K, D]``, and cache keys and values."""
        self._nodes.write(layer, key, value)
        tiles = iter(self._tiles)
        return by_tiles(lambda asked: self._attend(layer, asked, next(tiles)), query)

    def _attend(self, layer: int, query: Tensor, chunks: "list[_Chunk]") -> Tensor:
        """Return ``[TILE, H * D]`` for the queries ``[TILE, H, D]`` of a tile."""
        wide = torch.promote_types(query.dtype, torch.float32)
        heads, size = self._nodes.config.kv_heads, query.shape[-1]
        # [TILE, H, D] -> [TILE * K, G, D]
        asked = (query.to(wide) * size**-0.5).view(TILE * heads, -1, size)
        top = asked.new_full((*asked.shape[:2], 1), -math.inf)
        total, summed = torch.zeros_like(top), torch.zeros_like(asked)
        for chunk in chunks:
            keys, values = (chunk.gather(lines).to(wide) for lines in self._nodes.memory.lines[layer])
            scores = torch.bmm(asked, keys.transpose(1, 2)).masked_fill_(chunk.hidden, -math.inf)
            highest = torch.maximum(top, scores.amax(-1, keepdim=True))
            base = highest.masked_fill(highest == -math.inf, 0)
            weights, kept = (scores - base).exp_(), (top - base).exp_()
            total = total * kept + weights.sum(-1, keepdim=True)
            summed, top = summed * kept + torch.bmm(weights, values), highest
        # Nodes that see nothing are padding.
        return (summed / total.masked_fill(total == 0, 1)).to(query.dtype).view(TILE, -1)


class _Chunk:
    """The keys at the positions ``first .. first + CHUNK - 1`` of the nodes of a tile.

    Args:
        nodes: of the pass.
        first: position.
        positions, starts, rows: ``[TILE]`` of the nodes; position -1: it is padding.
        paths: ``[TILE, T]``; None: chains.

    Attributes:
        hidden: ``[TILE * K, 1, CHUNK]``: what the nodes must not see.
    """

    def __init__(
        self, nodes: PassNodes, first: int, positions: Tensor, starts: Tensor, rows: Tensor, paths: Tensor | None = None
    ) -> None:
        self._heads = torch.arange(nodes.config.kv_heads, device=rows.device)
        at, position = first + torch.arange(CHUNK, device=rows.device), positions.unsqueeze(1)
        seen, window = at <= position, nodes.config.sliding_window
        if window is not None:
            seen = seen & (at > position - window)
        self.hidden = (~seen).repeat_interleave(len(self._heads), dim=0).unsqueeze(1)
        slots, start = at.expand(TILE, -1), starts.unsqueeze(1)
        if paths is not None:
            above = paths.gather(1, (at - start).clamp(0, paths.shape[1] - 1))
            slots = torch.where(at < start, slots, start + above)
        self._capacity, self._first_heads = nodes.memory.capacity, rows * len(self._heads)
        self._slots = slots.clamp(max=nodes.memory.capacity - 1)

    def gather(self, lines: Tensor) -> Tensor:
        """Return ``[TILE * K, CHUNK, D]``: keys or values of the nodes, in the order of their positions."""
        # [TILE, K, CHUNK]
        heads = self._first_heads.unsqueeze(1) + self._heads
        at = heads.unsqueeze(2) * self._capacity + self._slots.unsqueeze(1)
        return lines.index_select(0, at.flatten()).view(-1, CHUNK, lines.shape[-1])
