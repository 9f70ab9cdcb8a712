"""Attention of a pass of static shape: all that depends on lengths and trees is in tensors, read on the device."""

import torch
from torch import Tensor
from torch.nn import functional

from oracles.graphed.graphed_nodes import PassNodes
from oracles.transformer.attention import visible_slots


class MaskedAttention:
    """Attend from the nodes of a pass to all slots of their rows; a mask hides what a node must not see.

    The query heads of a key head become further queries of it, so no key is copied for them. Keys are copied only if
    the batch is some rows of a larger cache.

    Args:
        nodes: those of the pass.

    Cost: O(R W C) per head with C the slots of a row, used or not; a mask of R W G C numbers for each pass, with G the
        query heads of a key head.
    """

    def __init__(self, nodes: PassNodes) -> None:
        self._nodes, self._bias = nodes, _bias_of(nodes)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``[R * W, H * D]`` from ``[R * W, H, D]`` and ``[R * W, K, D]``, and cache keys and values."""
        nodes = self._nodes
        nodes.write(layer, key, value)
        keys, values = nodes.memory.slots[layer]
        if not nodes.bucket.whole:
            keys, values = keys.index_select(0, nodes.rows), values.index_select(0, nodes.rows)
        # [R * W, H, D] -> [R, W, K, G, D] -> [R, K, W * G, D]
        rows, width, heads, size = nodes.bucket.rows, nodes.bucket.width, nodes.config.kv_heads, query.shape[-1]
        asked = query.view(rows, width, heads, -1, size).transpose(1, 2).flatten(2, 3)
        found = functional.scaled_dot_product_attention(
            asked, keys, values, attn_mask=self._bias, scale=nodes.config.head_size**-0.5
        )
        # [R, K, W * G, D] -> [R, W, K, G, D] -> [R * W, H * D]
        return found.view(rows, heads, width, -1, size).transpose(1, 2).reshape(len(query), -1)


def _bias_of(nodes: PassNodes) -> Tensor:
    """Return ``[R, 1, W * G, C]``: 0 where a node sees a slot.

    Elsewhere the least number, and not -inf: padding that sees nothing stays finite.
    """
    payload, capacity = nodes.memory.slots, nodes.memory.capacity
    # Padding stands in slots beyond the capacity.
    span, window = capacity + nodes.bucket.total, nodes.config.sliding_window
    seen = visible_slots(span, nodes.start, nodes.positions, window, nodes.ancestors, nodes.depth)[..., :capacity]
    bias = payload.new_zeros(seen.shape).masked_fill_(~seen, torch.finfo(payload.dtype).min)
    groups = nodes.config.num_heads // nodes.config.kv_heads
    each: Tensor = bias.unsqueeze(2).expand(-1, -1, groups, -1).flatten(1, 2)
    return each.unsqueeze(1)
