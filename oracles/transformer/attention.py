"""Attention: one causal form over whole sequences (training), one over a cache (inference)."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from oracles.transformer.config import TransformerConfig
from oracles.transformer.page_views import copy_pages, view_pages
from specdec.cache import PAGE, PagedKVCache
from specdec.contracts import IntArray, Tree
from specdec.transfers import together_on_device

# Keys per block of a weighted sum. A product of up to 192 keys adds them in order, whatever its other sizes; a tree of
# 128 nodes spreads the keys of a block of 64 positions over at most 64 + 127 slots.
BLOCK = 64
# Queries are padded to a multiple of this, and heads below this width to it, for the same reason.
QUERY_TILE = 4
MIN_HEAD = 16


class Attend(Protocol):
    """How a layer's queries attend to keys: the same layer serves training and inference."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``[..., H * D]`` from queries ``[..., H, D]`` and new keys and values ``[..., K, D]``."""


class CausalAttention:
    """Attend within whole sequences ``[B, T]`` without a cache.

    Args:
        config: window and head counts.
        length: T.
        device: of the mask, if a window needs one.

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
        if self.mask is None and torch.is_autocast_enabled(query.device.type) and query.device.type == "cpu":
            return chunked_attention(query, key, value)
        key, value = (x.repeat_interleave(self.groups, dim=2).transpose(1, 2) for x in (key, value))
        out = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key, value.to(key.dtype), attn_mask=self.mask, is_causal=self.mask is None
        )
        return out.transpose(1, 2).flatten(-2)


def chunked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    chunk: int | None = None,
    own: Sequence[tuple[Tensor, Tensor]] = (),
) -> Tensor:
    """Return causal attention ``[B, T, H * D]`` from ``[B, T, H, D]`` and ``[B, T, K, D]``, query chunk by query chunk.

    ``own`` are further keys and values ``[B, T, K, D]``, of which a query sees only those at its own place.

    For training in mixed precision on a CPU: there the library's own kernel is several times slower than plain matrix
    products. A chunk multiplies no key after its last query; a group of heads shares one product. Without ``chunk``
    there are about four, of at least 128 queries: more chunks would take longer to compile.

    Cost: the weights of the attention, B H T (T + chunk) / 2 of them, stay in memory until the backward pass.
    """
    batch, length, kv_heads, size = key.shape
    groups, chunk = query.shape[2] // kv_heads, max(128, length // 4) if chunk is None else chunk
    # [B, T, H, D] -> [B * K, G, T, D]; keys [B * K, D, T]; values [B * K, T, D]
    query = query.reshape(batch, length, kv_heads, groups, size).permute(0, 2, 3, 1, 4).flatten(0, 1)
    key, value = key.permute(0, 2, 3, 1).flatten(0, 1), value.transpose(1, 2).flatten(0, 1)
    # [B, T, K, D] -> [B * K, 1, T, D]; scores [B * K, G, T, len(own)]
    beside = [[x.transpose(1, 2).flatten(0, 1).unsqueeze(1) for x in pair] for pair in own]
    alone = [(query * pair[0]).float().sum(-1, keepdim=True) / math.sqrt(size) for pair in beside]
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=query.device).triu(1)
    outs = []
    for first in range(0, length, chunk):
        last = min(first + chunk, length)
        shape = (-1, groups, last - first, last)
        scores = torch.bmm(query[:, :, first:last].flatten(1, 2), key[:, :, :last]).float() / math.sqrt(size)
        hidden = functional.pad(later[: last - first, : last - first], (first, 0))
        seen = scores.view(shape).masked_fill(hidden, -math.inf)
        seen = torch.cat([seen, *(part[:, :, first:last] for part in alone)], -1) if alone else seen
        weights = seen.softmax(-1)
        out = torch.bmm(weights[..., :last].flatten(1, 2), value[:, :last]).view(*shape[:-1], size)
        for i, pair in enumerate(beside):
            out = out + weights[..., last + i, None] * pair[1][:, :, first:last]
        outs.append(out)
    # [B * K, G, T, D] -> [B, T, H * D]
    out = torch.cat(outs, dim=2).view(batch, kv_heads, groups, length, size)
    return out.permute(0, 3, 1, 2, 4).flatten(2)


def cache_shape(config: TransformerConfig, capacity: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the dimensions before and after the slots of a cache ``[layers, 2, K, slots, D]``, and a row's slots.

    Narrow heads are padded, and the slots are rounded up to whole blocks.
    """
    slots = -(-capacity // BLOCK) * BLOCK
    return (config.num_layers, 2, config.kv_heads), (max(config.head_size, MIN_HEAD),), slots


def visible_slots(
    span: int,
    start: Tensor,
    positions: Tensor,
    window: int | None,
    ancestors: Tensor | None = None,
    depth: Tensor | None = None,
) -> Tensor:
    """Return ``[B, W, span]`` bool: which of the first slots of its row a node sees.

    Args:
        window: see ``TransformerConfig.sliding_window``.
        span, start, positions, ancestors, depth: as in ``slots_on_paths``.
    """
    seen, at_position = slots_on_paths(span, start, positions, ancestors, depth)
    return seen if window is None else seen & (at_position > positions.unsqueeze(2) - window)


def slots_on_paths(
    span: int, start: Tensor, positions: Tensor, ancestors: Tensor | None, depth: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return ``[B, W, span]`` bool: which of the first slots of its row are on a node's path, and their positions.

    Args:
        span: number of slots; no node lies beyond them.
        start: ``[B, 1]`` slots of the prefix.
        positions: ``[B, W]`` of the nodes that attend.
        ancestors: ``[B, W, N]`` which of all nodes are ancestors of each node that attends, itself included; None:
            chains, whose slots are positions.
        depth: ``[B, N]`` of all nodes; None: chains.

    Returns:
        The slots, and ``[B or 1, 1, span]`` the positions of all slots.
    """
    at = torch.arange(span, device=start.device)
    if ancestors is None or depth is None:
        return at <= positions.unsqueeze(2), at.view(1, 1, -1)
    slots = (start + torch.arange(depth.shape[1], device=start.device)).unsqueeze(1)
    in_prefix = (at < start.unsqueeze(2)).expand(-1, ancestors.shape[1], -1)
    seen = in_prefix.scatter(2, slots.expand(ancestors.shape), ancestors)
    return seen, at.expand(len(start), 1, -1).scatter(2, slots, (start + depth).unsqueeze(1))


class CachedAttention:
    """Attend from the nodes of one scoring call to cached prefixes, ancestors and themselves.

    Softmax and weighted sums run over *positions*: a path's keys are in the order of their positions, cut into blocks
    that are added one after the other, and keys that a node must not see have weight 0. In a chain, slots are
    positions. In a tree, the slots after the shortest prefix are permuted for each node to put its ancestors first;
    the weights are then permuted back to the slots, so that no value is ever copied.

    Pages are read in place, or copied layer by layer: ``view_pages`` says when.

    Args:
        config: the model's shape.
        tree: the nodes, ``[B, N]``.
        cache: a cache of ``cache_shape``; the nodes' keys and values are written after the prefixes.
        rows: ``[B]`` the cache rows.
        first: number of nodes whose keys and values the cache already holds; only later ones attend and are written.

    Attributes:
        width: nodes that attend.
        positions: ``[B, width]`` positions of these nodes.

    Guarantee: on CPU in float32 a node's result depends bitwise on nothing but its query and the keys and values on its
        path, for up to 128 nodes and heads of at most 192: every dot product and every block is a chain of fused
        multiply-adds in the order of the positions, to which weights of 0 add nothing.

    Cost: O(B N T) per head, with T the longest row; a copy of keys and values if a row's pages are not contiguous.
    """

    def __init__(
        self, config: TransformerConfig, tree: Tree, cache: PagedKVCache, rows: IntArray, first: int = 0
    ) -> None:
        self.config, self.tree, self.cache, self.num_cached = config, tree, cache, first
        self.batch, self.width = tree.tokens.shape[0], tree.size - first
        self.groups = config.num_heads // config.kv_heads
        self.queries = -(-self.width * self.groups // QUERY_TILE) * QUERY_TILE
        lengths = cache.reserve(rows, tree.size, first)
        self.span = -(-(int(lengths.max()) + tree.size) // BLOCK) * BLOCK
        exact = cache.payload.device.type == "cpu" and cache.payload.itemsize >= 4
        self.block = BLOCK if exact else self.span
        self.shared = int(lengths.min()) // self.block * self.block
        pages, slots = cache.span(rows, self.span // PAGE), lengths[:, None] + np.arange(tree.size)
        self._views = view_pages(cache.memory, pages)
        numbers = (lengths, pages.ravel(), cache.lines(rows[:, None], slots[:, first:]).ravel())
        start, self._pages, self._lines = together_on_device(*numbers, device=tree.tokens.device)
        self.start = start.view(-1, 1)
        self.positions = self.start + (tree.depth[:, first:] if first else tree.depth)
        self._slots = self.start + torch.arange(tree.size, device=self.start.device)
        # The first block of positions whose weights lie in different slots for each node.
        self._spread_from = self.span if tree.parents is None else self.shared // self.block
        self._make_buffers()
        self._make_views()

    def _make_buffers(self) -> None:
        """Allocate the buffers that every layer overwrites, and make the views that the layers use.

        A layer's own arithmetic takes a few microseconds, so work that all layers share is done once.
        """
        both, payload = self.config.kv_heads * self.batch, self.cache.payload
        query = payload.new_zeros(both, self.queries, payload.shape[-1])
        self._query, sums = query, torch.empty_like(query)
        # [B, K, N, G, D] -> [B, N, K, G, D]
        self._query_nodes, self._sum_nodes = (
            self._nodes(buffer)[..., : self.config.head_size].transpose(1, 2) for buffer in (query, sums)
        )
        self._scores = payload.new_empty(both, self.queries, self.span)
        self._weights = torch.empty_like(self._scores)
        self._products = list(zip(self._make_bias(), *map(self._split, (query, self._scores)), strict=True))
        self._sums = self._split(sums)
        self._weight_blocks = list(map(self._split, torch.split(self._weights, self.block, dim=-1)))

    def _split(self, whole: Tensor) -> tuple[Tensor, ...]:
        """Return ``[K * B, ...]`` cut into the pieces that are multiplied separately."""
        count = len(self._views.pieces)
        return (whole,) if count == 1 else whole.view(count, -1, *whole.shape[1:]).unbind(0)

    def _make_views(self) -> None:
        """Make the layers' views of the cache: pages to read, and slots to write."""
        payload, size, pieces = self.cache.payload, self.config.head_size, self._views.pieces
        layers, _, heads, lines, _ = payload.shape
        self._keys = list(zip(*(piece[:, 0].transpose(-1, -2).unbind(0) for piece in pieces), strict=True))
        self._values = list(zip(*(piece[:, 1].unbind(0) for piece in pieces), strict=True))
        # A block's pieces, block after block, of every layer.
        blocks = zip(*(torch.split(piece[:, 1], self.block, dim=2) for piece in pieces), strict=True)
        by_block = [zip(*(piece.unbind(0) for piece in block), strict=True) for block in blocks]
        self._value_blocks = list(zip(*by_block, strict=True))
        flat = payload.view(layers, 2, heads * lines, -1)[..., :size]
        self._written = list(zip(flat[:, 0].unbind(0), flat[:, 1].unbind(0), strict=True))
        # [B * N, K]: where a node's heads lie among the slots of all heads
        self._write_at = self._lines.unsqueeze(1) + torch.arange(heads, device=self._lines.device) * lines

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``[B * N, H * D]`` from ``[B * N, H, D]`` and ``[B * N, K, D]``, and cache keys and values."""
        keys, values = self._written[layer]
        keys.index_put_((self._write_at,), key)
        values.index_put_((self._write_at,), value)
        self._place(query)
        if self._views.room is not None:
            copy_pages(self.cache.memory, layer, self._pages, self._views.room)
        for (bias, asked, scores), met in zip(self._products, self._keys[layer], strict=True):
            torch.baddbmm(bias, asked, met, out=scores)
        self._softmax(self._scores if self.tree.parents is None else self._by_position(self._scores))
        self._sum_values(layer)
        return self._sum_nodes.reshape(self.batch * self.width, -1)

    def _softmax(self, scores: Tensor) -> None:
        if scores.itemsize >= 4:
            torch.softmax(scores, -1, out=self._weights)
        else:
            self._weights.copy_(scores.softmax(-1, dtype=torch.float32))

    def _sum_values(self, layer: int) -> None:
        """Sum the weighted values, block after block."""
        for i, (weights, values) in enumerate(zip(self._weight_blocks, self._value_blocks[layer], strict=True)):
            if i >= self._spread_from:
                weights, values = self._spread(layer, i * self.block)
            for out, weight, value in zip(self._sums, weights, values, strict=True):
                if i == 0:
                    torch.bmm(weight, value, out=out)
                else:
                    out.baddbmm_(weight, value)

    def _spread(self, layer: int, begin: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the weights of a block of positions, and the values that they belong to, piece by piece."""
        weights = self._by_slot(self._weights[..., begin : begin + self.block], begin)
        end = begin + weights.shape[-1]
        return self._split(weights), tuple(value[:, begin:end] for value in self._values[layer])

    def _place(self, query: Tensor) -> None:
        """Write scaled queries ``[B * N, H, D]`` to the query buffer, the query heads of a key head side by side."""
        # [B * N, H, D] -> [B, N, K, G, D]
        split = query.view(self.batch, self.width, -1, self.groups, query.shape[-1])
        torch.mul(split, self.config.head_size**-0.5, out=self._query_nodes)

    def _nodes(self, padded: Tensor) -> Tensor:
        """View ``[K * B, queries, X]``, in the order of the pieces, as ``[B, K, N, G, X]``, without the padding."""
        heads, groups = self.config.kv_heads, (self.width, self.groups)
        outer = (self.batch, heads) if self._views.rows_first else (heads, self.batch)
        nodes = padded[:, : self.width * self.groups].view(*outer, *groups, padded.shape[-1])
        return nodes if self._views.rows_first else nodes.transpose(0, 1)

    def _make_bias(self) -> list[Tensor]:
        """Return the bias of the scores ``[M, queries, T]`` of each piece: 0 if a node sees a slot, else -inf."""
        hidden = (~self._visible()).unsqueeze(2)
        bias = self.cache.payload.new_zeros(self.batch, self.queries, self.span)
        nodes = bias[:, : self.width * self.groups].view(self.batch, self.width, self.groups, self.span)
        nodes.masked_fill_(hidden, float("-inf"))
        if self._views.rows_first:
            return list(torch.split(bias, 1))
        count = len(self._views.pieces)
        return [bias] * count if count > 1 else [bias.repeat(self.config.kv_heads, 1, 1)]

    def _visible(self) -> Tensor:
        """Return ``[B, N, T]`` bool: which slots a node sees."""
        above = (None, None) if self.tree.parents is None else (self._ancestors, self.tree.depth)
        return visible_slots(self.span, self.start, self.positions, self.config.sliding_window, *above)

    @property
    def _ancestors(self) -> Tensor:
        """``[B, width, N]`` bool: which nodes are ancestors of each node that attends, itself included."""
        return self.tree.ancestors[:, self.num_cached :]

    @cached_property
    def _order(self) -> Tensor:
        """``[B, 1, N, 1, T - shared]``: the slot at each position after the shared blocks, as a permutation."""
        identity = torch.arange(self.span - self.shared, device=self.start.device)
        ancestors_first = (~self._ancestors).long().argsort(dim=2, stable=True)
        slots = (self._slots - self.shared).unsqueeze(1).expand(-1, self.width, -1)
        order = identity.expand(self.batch, self.width, -1)
        order = order.scatter(2, slots, (self.start - self.shared).unsqueeze(2) + ancestors_first)
        return order.view(self.batch, 1, self.width, 1, -1)

    def _by_position(self, scores: Tensor) -> Tensor:
        """Permute the scores after the shared blocks from slots to positions, in place."""
        nodes = self._nodes(scores)[..., self.shared :]
        nodes.copy_(nodes.gather(-1, self._order.expand(nodes.shape)))
        return scores

    def _by_slot(self, part: Tensor, begin: int) -> Tensor:
        """Return the weights of a block of positions at the slots ``begin .. begin + block + N - 1`` that hold them."""
        end = min(begin + self.block + self.tree.size - 1, self.span)
        nodes = self._nodes(part)
        order = self._order[..., begin - self.shared : begin - self.shared + self.block]
        spread = part.new_zeros(*part.shape[:-1], self.span - self.shared)
        self._nodes(spread).scatter_(-1, order.expand(nodes.shape), nodes)
        return spread[..., begin - self.shared : end - self.shared]
