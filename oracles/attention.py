"""Attention: one causal form over whole sequences (training), one over a cache (inference)."""

from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from oracles.config import TransformerConfig
from specdec.contracts import IntArray
from specdec.kv_cache import KVCache
from specdec.tree import Tree

# Keys per block of a weighted sum. A product of up to 192 keys adds them in order, whatever its other sizes; a tree of
# 128 nodes spreads the keys of a block of 64 positions over at most 64 + 127 slots.
BLOCK = 64
# Queries are padded to a multiple of this, and heads below this width are, for the same reason.
QUERY_TILE = 4
MIN_HEAD = 16


class Attend(Protocol):
    """How the queries of a layer meet keys: the same layer serves training and inference."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``[..., H * D]`` from queries ``[..., H, D]`` and new keys and values ``[..., K, D]``."""


class CausalAttention:
    """Attend within whole sequences ``[B, T]`` without a cache.

    Args:
        config: window and head counts.
        length: T.
        device: of the mask, where a window needs one.

    Cost: O(B T^2) per head.
    """

    def __init__(self, config: TransformerConfig, length: int, device: torch.device) -> None:
        self.groups = config.num_heads // config.kv_heads
        self.mask: Tensor | None = None
        if config.sliding_window is not None and config.sliding_window < length:
            age = torch.arange(length, device=device).unsqueeze(1) - torch.arange(length, device=device)
            self.mask = (age >= 0) & (age < config.sliding_window)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``[B, T, H * D]`` from ``[B, T, H, D]`` and ``[B, T, K, D]``; the layer's number is not used."""
        key, value = (x.repeat_interleave(self.groups, dim=2).transpose(1, 2) for x in (key, value))
        out = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key, value.to(key.dtype), attn_mask=self.mask, is_causal=self.mask is None
        )
        return out.transpose(1, 2).flatten(-2)


def cache_shape(config: TransformerConfig, num_rows: int, capacity: int) -> tuple[int, ...]:
    """Return the cache's payload shape ``[layers, 2, rows, K, slots, D]``: whole blocks of slots, no narrow heads."""
    slots = -(-capacity // BLOCK) * BLOCK
    return (config.num_layers, 2, num_rows, config.kv_heads, slots, max(config.head_size, MIN_HEAD))


CACHE_ROW_DIM, CACHE_SLOT_DIM = 2, 4


class CachedAttention:
    """Attend from the nodes of one scoring call to cached prefixes, ancestors and themselves.

    Softmax and weighted sums run over *positions*: a path's keys stand in the order of their positions, cut into blocks
    that are added one after the other, and keys that a node must not see have weight 0. For a chain slots are
    positions. For a tree the slots behind the shortest prefix are permuted, per node, to put its ancestors first; the
    weights go back to the slots, so that no value is ever copied.

    Args:
        config: the model's shape.
        tree: the nodes, ``[B, N]``.
        cache: a cache of ``cache_shape``; the nodes' keys and values are written behind the prefixes.
        rows: ``[B]`` the cache rows.

    Guarantee: on CPU in float32 a node's result depends bitwise on nothing but its query and the keys and values on its
        path, for up to 128 nodes and heads of at most 192: every dot product and every block is a chain of fused
        multiply-adds in the order of the positions, to which weights of 0 add nothing.

    Cost: O(B N T) per head, with T the longest row; the rows' whole span in the cache is read, those between the
        batch's own included.
    """

    def __init__(self, config: TransformerConfig, tree: Tree, cache: KVCache, rows: IntArray) -> None:
        self.config, self.tree, self.cache = config, tree, cache
        self.batch, self.width = tree.tokens.shape
        self.groups = config.num_heads // config.kv_heads
        self.queries = -(-self.width * self.groups // QUERY_TILE) * QUERY_TILE
        lengths = cache.reserve(rows, self.width)
        self.span = -(-(int(lengths.max()) + self.width) // BLOCK) * BLOCK
        exact = cache.payload.device.type == "cpu" and cache.payload.itemsize >= 4
        self.block = BLOCK if exact else self.span
        self.shared = int(lengths.min()) // self.block * self.block
        self.first, self.num_rows = int(rows.min()), int(rows.max()) - int(rows.min()) + 1
        self.dense = self.num_rows == self.batch and bool((rows[1:] > rows[:-1]).all())
        self.at = torch.from_numpy(rows - self.first).to(tree.tokens.device)
        self.start = torch.from_numpy(lengths).to(tree.tokens.device).view(-1, 1)
        self.positions = self.start + tree.depth
        self._single = int(lengths[0]) if self.batch == 1 else None
        self._query = cache.payload.new_zeros(self.num_rows, config.kv_heads, self.queries, cache.payload.shape[-1])
        self._query_nodes = self._nodes(self._query)[..., : config.head_size]
        self._bias = self._make_bias()
        # [layers, 2, rows, K, slots, D] -> [layers, 2, rows * K, T, D], a view
        covered = cache.payload[:, :, self.first : self.first + self.num_rows, :, : self.span].flatten(2, 3)
        self._keys, self._values = covered[:, 0].transpose(-1, -2).unbind(0), covered[:, 1].unbind(0)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``[B * N, H * D]`` from ``[B * N, H, D]`` and ``[B * N, K, D]``, and cache keys and values."""
        self._write(self.cache.payload[layer], key, value)
        self._place(query)
        scores = torch.baddbmm(self._bias, self._query.flatten(0, 1), self._keys[layer])
        weights = self._softmax(scores if self.tree.parents is None else self._by_position(scores))
        return self._collect(self._weighted_sum(weights, self._values[layer]))

    def _softmax(self, scores: Tensor) -> Tensor:
        if scores.itemsize >= 4:
            return scores.softmax(-1)
        return scores.softmax(-1, dtype=torch.float32).to(scores.dtype)

    def _weighted_sum(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return ``[rows * K, queries, D]``, block after block."""
        out: Tensor | None = None
        for begin in range(0, self.span, self.block):
            end = begin + self.block
            part = weights[..., begin:end]
            if self.tree.parents is not None and end > self.shared:
                part, end = self._by_slot(part, begin), min(end + self.width - 1, self.span)
            met = values[:, begin:end]
            out = torch.bmm(part, met) if out is None else out.baddbmm_(part, met)
        assert out is not None
        return out

    def _write(self, payload: Tensor, key: Tensor, value: Tensor) -> None:
        """Store the nodes' keys and values behind the prefixes of a layer's ``[2, rows, K, slots, D]``."""
        size = self.config.head_size
        for part, new in zip(payload.unbind(0), (key, value), strict=True):
            if self._single is not None:
                slots = slice(self._single, self._single + self.width)
                part[self.first, :, slots, :size].copy_(new.transpose(0, 1))
            else:
                # [rows, K, slots, D] indexed by rows and slots -> [B, N, K, D]
                at = part[..., :size].transpose(1, 2)
                at[self._cache_rows, self._slots] = new.view(self.batch, self.width, -1, size)

    @cached_property
    def _cache_rows(self) -> Tensor:
        return self.at.unsqueeze(1) + self.first

    @cached_property
    def _slots(self) -> Tensor:
        return self.start + torch.arange(self.width, device=self.start.device)

    def _place(self, query: Tensor) -> None:
        """Scale ``[B * N, H, D]`` into the query buffer, the query heads of a key head side by side."""
        # [B, N, K, G, D] -> [B, K, N, G, D]
        split = query.view(self.batch, self.width, -1, self.groups, query.shape[-1]).transpose(1, 2)
        scale = self.config.head_size**-0.5
        if self.dense:
            torch.mul(split, scale, out=self._query_nodes)
        else:
            self._query_nodes[self.at] = split * scale

    def _nodes(self, padded: Tensor) -> Tensor:
        """View ``[rows(, *) K, queries, X]`` as ``[rows, K, N, G, X]``, without the padding."""
        whole = padded.view(self.num_rows, self.config.kv_heads, self.queries, padded.shape[-1])
        shape = (self.num_rows, self.config.kv_heads, self.width, self.groups, padded.shape[-1])
        return whole[:, :, : self.width * self.groups].view(shape)

    def _collect(self, out: Tensor) -> Tensor:
        """Return ``[B * N, H * D]`` from ``[rows * K, queries, D]``."""
        nodes = self._nodes(out)[..., : self.config.head_size]
        if not self.dense:
            nodes = nodes[self.at]
        return nodes.transpose(1, 2).reshape(self.batch * self.width, -1)

    def _make_bias(self) -> Tensor:
        """Return ``[rows * K or 1, queries, T]``: 0 where a node sees a slot, -inf elsewhere."""
        hidden = ~self._seen()
        bias = self._query.new_zeros(self.num_rows, self.queries, self.span)
        nodes = bias[:, : self.width * self.groups].view(self.num_rows, self.width, self.groups, self.span)
        nodes[self.at] = nodes.new_zeros(()).masked_fill(hidden, float("-inf")).unsqueeze(2).expand(
            -1, -1, self.groups, -1
        )
        if self.num_rows == 1:
            return bias
        return bias.repeat_interleave(self.config.kv_heads, dim=0)

    def _seen(self) -> Tensor:
        """Return ``[B, N, T]`` bool: which slots a node sees."""
        at = torch.arange(self.span, device=self.start.device)
        positions = self.positions.unsqueeze(2)
        if self.tree.parents is None:
            seen, at_position = at <= positions, at.view(1, 1, -1)
        else:
            in_prefix = at < self.start.unsqueeze(2)
            slots = self._slots.unsqueeze(1)
            each = slots.expand(-1, self.width, -1)
            seen = in_prefix.expand(-1, self.width, -1).scatter(2, each, self.tree.ancestors)
            at_position = at.expand(self.batch, 1, -1).scatter(2, slots, self.positions.unsqueeze(1))
        if self.config.sliding_window is not None:
            seen = seen & (at_position > positions - self.config.sliding_window)
        return seen

    @cached_property
    def _order(self) -> Tensor:
        """``[rows, 1, N, 1, T - shared]``: the slot at each position behind the shared blocks, as a permutation."""
        identity = torch.arange(self.span - self.shared, device=self.start.device)
        order = identity.expand(self.num_rows, self.width, -1).clone()
        ancestors_first = (~self.tree.ancestors).long().argsort(dim=2, stable=True)
        slots = (self._slots - self.shared).unsqueeze(1).expand(-1, self.width, -1)
        order[self.at] = order[self.at].scatter(2, slots, (self.start - self.shared).unsqueeze(2) + ancestors_first)
        return order.view(self.num_rows, 1, self.width, 1, -1)

    def _by_position(self, scores: Tensor) -> Tensor:
        """Permute the scores behind the shared blocks from slots to positions, in place."""
        nodes = self._nodes(scores)[..., self.shared :]
        nodes.copy_(nodes.gather(-1, self._order.expand(nodes.shape)))
        return scores

    def _by_slot(self, part: Tensor, begin: int) -> Tensor:
        """Return the weights of a block of positions at the slots ``begin .. begin + block + N - 1`` that hold them."""
        end = min(begin + self.block + self.width - 1, self.span)
        nodes = self._nodes(part.contiguous())
        order = self._order[..., begin - self.shared : begin - self.shared + self.block]
        spread = part.new_zeros(*part.shape[:-1], self.span - self.shared)
        self._nodes(spread).scatter_(-1, order.expand(nodes.shape), nodes)
        return spread[..., begin - self.shared : end - self.shared]
