"""Attention of a pass of static shape: what depends on lengths and trees is a tensor, read on the device."""

import torch
from torch import Tensor
from torch.nn import functional

from oracles.attention import seen_slots
from oracles.config import TransformerConfig
from oracles.graphed.buckets import Bucket
from oracles.graphed.memory import Memory
from oracles.graphed.upload import Packed
from specdec.tree import ancestors_of


class SlotAttention:
    """Attend from the nodes of a pass to all slots of their rows; a mask hides what a node must not see.

    The query heads of a key head are further queries of it, so that no key is copied for them. Keys are copied only if
    the batch is some rows of a larger cache.

    Args:
        config: the model's shape.
        bucket: the pass's shape.
        packed: its integers.
        memory: of the cache.

    Attributes:
        positions: ``[R, W]`` of the nodes; those of padding may lie beyond the context.

    Guarantee: keys and values of real nodes are written to their slots, all others to the scratch line.

    Cost: O(R W C) per head with C the slots of a row, used or not; a mask of R W G C numbers once a pass, with G the
        query heads of a key head.
    """

    def __init__(self, config: TransformerConfig, bucket: Bucket, packed: Packed, memory: Memory) -> None:
        self.config, self.bucket, self.memory = config, bucket, memory
        self.rows = None if bucket.whole else packed.rows
        node = torch.arange(bucket.width, device=packed.rows.device)
        scored, start = packed.firsts.unsqueeze(1), packed.starts.unsqueeze(1)
        index = scored + node
        ancestors, depth = _tree(packed.parents, index)
        self.positions = start + (index if depth is None else depth.gather(1, _within(index, depth)))
        self._lines = self._lines_of(packed, start + index, index < packed.num_nodes.unsqueeze(1))
        self._bias = self._bias_of(start, ancestors, depth)

    def _lines_of(self, packed: Packed, slots: Tensor, is_real: Tensor) -> Tensor:
        """Return ``[R * W, K]``: the lines that the nodes' keys go to."""
        heads = torch.arange(self.config.kv_heads, device=slots.device)
        of_row = (packed.rows.view(-1, 1, 1) * len(heads) + heads) * self.memory.capacity
        lines = (of_row + slots.unsqueeze(2)).masked_fill_(~is_real.unsqueeze(2), self.memory.scratch)
        return lines.flatten(0, 1)

    def _bias_of(self, start: Tensor, ancestors: Tensor | None, depth: Tensor | None) -> Tensor:
        """Return ``[R, 1, W * G, C]``: 0 where a node sees a slot.

        Elsewhere the least number, and not -inf: padding that sees nothing stays finite.
        """
        payload, capacity = self.memory.slots, self.memory.capacity
        # Padding stands in slots beyond the capacity.
        span = capacity + self.bucket.total
        seen = seen_slots(span, start, self.positions, self.config.sliding_window, ancestors, depth)[..., :capacity]
        bias = payload.new_zeros(seen.shape).masked_fill_(~seen, torch.finfo(payload.dtype).min)
        groups = self.config.num_heads // self.config.kv_heads
        each: Tensor = bias.unsqueeze(2).expand(-1, -1, groups, -1).flatten(1, 2)
        return each.unsqueeze(1)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``[R * W, H * D]`` from ``[R * W, H, D]`` and ``[R * W, K, D]``, and cache keys and values."""
        for lines, new in zip(self.memory.lines[layer], (key, value), strict=True):
            lines.index_put_((self._lines,), new)
        keys, values = self.memory.keys[layer], self.memory.values[layer]
        if self.rows is not None:
            keys, values = keys.index_select(0, self.rows), values.index_select(0, self.rows)
        # [R * W, H, D] -> [R, W, K, G, D] -> [R, K, W * G, D]
        rows, width, heads, size = self.bucket.rows, self.bucket.width, self.config.kv_heads, query.shape[-1]
        asked = query.view(rows, width, heads, -1, size).transpose(1, 2).flatten(2, 3)
        found = functional.scaled_dot_product_attention(
            asked, keys, values, attn_mask=self._bias, scale=self.config.head_size**-0.5
        )
        # [R, K, W * G, D] -> [R, W, K, G, D] -> [R * W, H * D]
        return found.view(rows, heads, width, -1, size).transpose(1, 2).reshape(len(query), -1)


def _tree(parents: Tensor | None, index: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return ``[R, W, T]`` which nodes are above those of ``index`` ``[R, W]``, and ``[R, T]`` depths; None: chains."""
    if parents is None:
        return None, None
    ancestors = ancestors_of(parents)
    own = _within(index, parents).unsqueeze(2).expand(-1, -1, ancestors.shape[2])
    return ancestors.gather(1, own), ancestors.sum(-1) - 1


def _within(index: Tensor, nodes: Tensor) -> Tensor:
    """Return indices of nodes that padding does not carry out of ``nodes`` ``[R, T]``."""
    return index.clamp(max=nodes.shape[1] - 1)
