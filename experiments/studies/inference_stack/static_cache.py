"""A cached step on buffers of fixed length, which a compiler can take as a whole.

All rows of a batch are at the same position, so a step is a function of ids, one position, and the buffers.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from oracles.transformer.config import TransformerConfig
from oracles.transformer.eager import Transformer

Meet = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def fused_attention(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Return attention ``[B, H, W, D]`` by torch's own kernel.

    Args:
        query: ``[B, H, W, D]``.
        keys, values: ``[B, H, C, D]``.
        seen: ``[W, C]`` bool.
    """
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen)


def explicit(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Return what ``fused_attention`` does, ``[B, H, W, D]``, as four operations: product, mask, softmax, product."""
    scores = query @ keys.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return scores.masked_fill(~seen, -math.inf).softmax(-1) @ values


Pair = tuple[Tensor, Tensor]  # keys and values of a layer, [B, K, C, D] each
Join = Callable[[Tensor, Tensor, Tensor], Tensor]


def in_place(held: Tensor, at: Tensor, new: Tensor) -> Tensor:
    """Write ``new`` ``[B, K, W, D]`` to the positions ``at`` ``[W]`` of what is held ``[B, K, C, D]``; return that."""
    return held.index_copy_(2, at, new)


def copy_in(held: Tensor, at: Tensor, new: Tensor) -> Tensor:
    """Do as ``in_place`` does, but in a copy ``[B, K, C, D]``, as a loop within a graph wants it."""
    return held.index_copy(2, at, new)


def append(held: Tensor, at: Tensor, new: Tensor) -> Tensor:
    """Return what is held, ``[B, K, C, D]``, with ``new`` ``[B, K, W, D]`` after it: positions so far, no others."""
    return torch.cat([held, new], dim=2)


def empty_pairs(model: Transformer, batch: int, capacity: int) -> list[Pair]:
    """Return zeros for ``batch`` rows of ``capacity`` positions, a pair for every layer."""
    size = (batch, model.config.kv_heads, capacity, model.config.head_size)

    def zeros() -> Tensor:
        return torch.zeros(size, dtype=model.dtype, device=model.device)

    return [(zeros(), zeros()) for _ in range(model.num_layers)]


class StoredAttention:
    """Attend from new positions to those that stand (``oracles.transformer.attention.Attend``).

    Args:
        config: the model's shape.
        pairs: keys and values of every layer.
        at: ``[W]`` the new positions.
        join: how new keys come to those that are held.
        meet: how queries meet keys.

    Attributes:
        pairs: those with the new ones, of the layers that have attended.
    """

    def __init__(self, config: TransformerConfig, pairs: Sequence[Pair], at: Tensor, join: Join, meet: Meet) -> None:
        self.config, self.pairs, self.at, self.join, self.meet = config, list(pairs), at, join, meet

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``[B, W, H * D]`` from ``[B, W, H, D]`` and ``[B, W, K, D]``."""
        new, held = (key.transpose(1, 2), value.transpose(1, 2)), self.pairs[layer]
        keys, values = self.join(held[0], self.at, new[0]), self.join(held[1], self.at, new[1])
        self.pairs[layer] = keys, values
        groups = self.config.num_heads // self.config.kv_heads
        if groups > 1:
            keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
        age = self.at.unsqueeze(1) - torch.arange(keys.shape[2], device=self.at.device)
        seen = age >= 0
        if self.config.sliding_window is not None:
            seen = seen & (age < self.config.sliding_window)
        return self.meet(query.transpose(1, 2), keys, values, seen).transpose(1, 2).flatten(-2)


def next_ids(
    model: Transformer,
    tokens: Tensor,
    at: Tensor,
    pairs: Sequence[Pair],
    join: Join,
    end: int,
    meet: Meet = fused_attention,
) -> tuple[Tensor, list[Pair]]:
    """Return the likeliest ids after some tokens, and keys and values with theirs.

    Args:
        model: as it trains.
        tokens: ``[B, W]``.
        at: ``[W]`` their positions.
        pairs: keys and values of every layer.
        join: how the new ones come to them.
        end: all positions are below it.
        meet: how queries meet keys.

    Returns:
        ``[B, 1]`` ids, and the pairs.
    """
    attend = StoredAttention(model.config, pairs, at, join, meet)
    streams = model.model(tokens, at.expand(tokens.shape), end, attend)
    return model.read_out(streams[-1][:, -1]).argmax(-1, keepdim=True), attend.pairs


def next_ids_uncached(model: Transformer, tokens: Tensor, length: Tensor | int) -> Tensor:
    """Return the likeliest id ``[B, 1]`` after the first ``length`` of ``tokens`` ``[B, T]``, without a cache."""
    stream = model.streams(tokens)[-1]
    last = stream[:, length - 1] if isinstance(length, int) else stream.index_select(1, length - 1).squeeze(1)
    return model.read_out(last).argmax(-1, keepdim=True)
