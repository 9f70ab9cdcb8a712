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
from specdec.cache import PAGE, PagedKVCache
from specdec.contracts import IntArray, Tree
from specdec.transfers import together_on_device

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
    """Return causal attention ``[B, T, H * D]`` from ``[B, T, H, D]`` and ``[B, T, K, D]``, chunks of queries in turn.

    ``own`` are further keys and values ``[B, T, K, D]``, of which a query sees those at its own place alone.

    For training in mixed precision on a CPU: there the library's own kernel multiplies several times slower than
    plain matrix products do. A chunk multiplies no key after its last query; a group of heads shares one product.
    Without ``chunk`` there are about four, of at least 128 queries: more of them would take longer to compile.

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
    """Return what lies around the slots of ``[layers, 2, K, slots, D]``, no narrow heads, and a row's whole blocks."""
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
        span: slots; no node stands beyond them.
        start: ``[B, 1]`` slots of the prefix.
        positions: ``[B, W]`` of the nodes that attend.
        window: see ``TransformerConfig.sliding_window``.
        ancestors: ``[B, W, N]`` which of all nodes each of those has above it, itself included; None: chains, whose
            slots are positions.
        depth: ``[B, N]`` of all nodes; None: chains.
    """
    at, positions = torch.arange(span, device=start.device), positions.unsqueeze(2)
    if ancestors is None or depth is None:
        seen, at_position = at <= positions, at.view(1, 1, -1)
    else:
        slots = (start + torch.arange(depth.shape[1], device=start.device)).unsqueeze(1)
        in_prefix = (at < start.unsqueeze(2)).expand(-1, ancestors.shape[1], -1)
        seen = in_prefix.scatter(2, slots.expand(ancestors.shape), ancestors)
        at_position = at.expand(len(start), 1, -1).scatter(2, slots, (start + depth).unsqueeze(1))
    return seen if window is None else seen & (at_position > positions - window)


def _steps_of(pages: IntArray) -> tuple[int, int] | None:
    """Return the first page, and the distance of two rows, if ``[B, n]`` pages lie side by side and rows as far apart.

    None: they do not.
    """
    steps = np.diff(pages[:, 0])
    if (np.diff(pages, axis=1) != 1).any() or (steps != steps[:1]).any() or (steps < 0).any():
        return None
    return int(pages[0, 0]), int(steps[0]) if steps.size else 0


class CachedAttention:
    """Attend from the nodes of one scoring call to cached prefixes, ancestors and themselves.

    Softmax and weighted sums run over *positions*: a path's keys stand in the order of their positions, cut into blocks
    that are added one after the other, and keys that a node must not see have weight 0. For a chain slots are
    positions. For a tree the slots after the shortest prefix are permuted, per node, to put its ancestors first; the
    weights go back to the slots, so that no value is ever copied.

    Pages are read where they are if those of each row lie side by side, and the rows at equal distances, as they do if
    no prefix is shared; with several rows that takes a product for each key head. Others are copied layer by layer.

    Args:
        config: the model's shape.
        tree: the nodes, ``[B, N]``.
        cache: a cache of ``cache_shape``; the nodes' keys and values are written after the prefixes.
        rows: ``[B]`` the cache rows.
        first: keys and values of the first so many nodes lie in the cache; only the others attend and are written.

    Attributes:
        width: nodes that attend.
        positions: ``[B, width]`` theirs.

    Guarantee: on CPU in float32 a node's result depends bitwise on nothing but its query and the keys and values on its
        path, for up to 128 nodes and heads of at most 192: every dot product and every block is a chain of fused
        multiply-adds in the order of the positions, to which weights of 0 add nothing.

    Cost: O(B N T) per head, with T the longest row; a copy of keys and values if pages lie in another order.
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
        self._steps = _steps_of(pages)
        self._num_parts = config.kv_heads if self._steps is not None and self.batch > 1 else 1
        numbers = (lengths, pages.ravel(), cache.lines(rows[:, None], slots[:, first:]).ravel())
        start, self._pages, self._lines = together_on_device(*numbers, device=tree.tokens.device)
        self.start = start.view(-1, 1)
        self.positions = self.start + (tree.depth[:, first:] if first else tree.depth)
        self._slots = self.start + torch.arange(tree.size, device=self.start.device)
        self._bias = self._make_bias()
        self._make_buffers()
        self._make_views()

    def _make_buffers(self) -> None:
        """Allocate what every layer overwrites, and look at it as the layers do.

        A layer's own arithmetic takes few microseconds, so what is the same in all of them is done once.
        """
        heads, payload = self.config.kv_heads, self.cache.payload
        query = payload.new_zeros(heads * self.batch, self.queries, payload.shape[-1])
        self._query, self._sum = query, torch.empty_like(query)
        # [K, B, N, G, D] -> [B, N, K, G, D]
        self._query_nodes, self._sum_nodes = (
            self._nodes(buffer)[..., : self.config.head_size].permute(1, 2, 0, 3, 4) for buffer in (query, self._sum)
        )
        self._scores = payload.new_empty(heads * self.batch, self.queries, self.span)
        self._products = list(zip(*map(self._split, (query, self._scores, self._sum)), strict=True))

    def _split(self, whole: Tensor) -> tuple[Tensor, ...]:
        """Return ``[K * B, ...]`` in the parts that are multiplied on their own."""
        return whole.view(self._num_parts, -1, *whole.shape[1:]).unbind(0)

    def _make_views(self) -> None:
        """Look at the cache as the layers do: as pages to read, and as slots to write."""
        payload, size = self.cache.payload, self.config.head_size
        layers, _, heads, lines, _ = payload.shape
        self._pages_of = self.cache.memory.by_page().unbind(0)
        self._met, self._room = [], None
        if self._steps is None:
            self._room = payload.new_empty(2, heads, len(self._pages), PAGE, payload.shape[-1])
        else:
            (first, step), row = self._steps, PAGE * payload.shape[-1]
            shape = (layers, 2, heads, self.batch, self.span, payload.shape[-1])
            strides = (*payload.stride()[:3], int(step) * row, *payload.stride()[3:])
            there = payload.as_strided(shape, strides, payload.storage_offset() + int(first) * row)
            # A product for each key head of several rows, or one for all key heads of a row.
            there = there.transpose(1, 2) if self.batch > 1 else there.permute(0, 3, 1, 2, 4, 5)
            self._met = [layer.unbind(0) for layer in there.unbind(0)]
        flat = payload.view(layers, 2, heads * lines, -1)[..., :size]
        self._written = list(zip(flat[:, 0].unbind(0), flat[:, 1].unbind(0), strict=True))
        # [B * N, K]: where a node's heads lie among the slots of all heads
        self._write_at = self._lines.unsqueeze(1) + torch.arange(heads, device=self._lines.device) * lines

    def _read(self, layer: int) -> Sequence[Tensor]:
        """Return the keys and values of a layer, ``[2, B or K * B, T, D]`` for each of the parts."""
        if self._met:
            return self._met[layer]
        met = torch.index_select(self._pages_of[layer], 2, self._pages, out=self._room)
        # [2, K, B * T / 16, 16, D] -> [2, K * B, T, D]
        return (met.view(2, self.config.kv_heads * self.batch, self.span, met.shape[-1]),)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``[B * N, H * D]`` from ``[B * N, H, D]`` and ``[B * N, K, D]``, and cache keys and values."""
        keys, values = self._written[layer]
        keys.index_put_((self._write_at,), key)
        values.index_put_((self._write_at,), value)
        self._place(query)
        met = self._read(layer)
        for (asked, scores, _), part in zip(self._products, met, strict=True):
            torch.baddbmm(self._bias, asked, part[0].transpose(1, 2), out=scores)
        weights = self._softmax(self._scores if self.tree.parents is None else self._by_position(self._scores))
        self._sum_values(weights, [part[1] for part in met])
        return self._sum_nodes.reshape(self.batch * self.width, -1)

    def _softmax(self, scores: Tensor) -> Tensor:
        if scores.itemsize >= 4:
            return scores.softmax(-1)
        return scores.softmax(-1, dtype=torch.float32).to(scores.dtype)

    def _sum_values(self, weights: Tensor, values: Sequence[Tensor]) -> None:
        """Sum the values, block after block."""
        for i, part in enumerate(torch.split(weights, self.block, dim=-1)):
            begin = i * self.block
            if self.tree.parents is not None and begin + self.block > self.shared:
                part = self._by_slot(part, begin)
            for (_, _, out), weight, value in zip(self._products, self._split(part), values, strict=True):
                met = value[:, begin : begin + part.shape[-1]]
                if i == 0:
                    torch.bmm(weight, met, out=out)
                else:
                    out.baddbmm_(weight, met)

    def _place(self, query: Tensor) -> None:
        """Scale ``[B * N, H, D]`` into the query buffer, the query heads of a key head side by side."""
        # [B * N, H, D] -> [B, N, K, G, D]
        split = query.view(self.batch, self.width, -1, self.groups, query.shape[-1])
        torch.mul(split, self.config.head_size**-0.5, out=self._query_nodes)

    def _nodes(self, padded: Tensor) -> Tensor:
        """View ``[K * B, queries, X]`` as ``[K, B, N, G, X]``, without the padding."""
        whole = padded.view(self.config.kv_heads, self.batch, self.queries, padded.shape[-1])
        shape = (self.config.kv_heads, self.batch, self.width, self.groups, padded.shape[-1])
        return whole[:, :, : self.width * self.groups].view(shape)

    def _make_bias(self) -> Tensor:
        """Return ``[K * B or B, queries, T]``, for every part: 0 if a node sees a slot, else -inf."""
        hidden = (~self._visible()).unsqueeze(2)
        bias = self.cache.payload.new_zeros(self.batch, self.queries, self.span)
        nodes = bias[:, : self.width * self.groups].view(self.batch, self.width, self.groups, self.span)
        nodes.masked_fill_(hidden, float("-inf"))
        if self.batch == 1 or self._num_parts > 1:
            return bias
        return bias.repeat(self.config.kv_heads, 1, 1)

    def _visible(self) -> Tensor:
        """Return ``[B, N, T]`` bool: which slots a node sees."""
        above = (None, None) if self.tree.parents is None else (self._ancestors, self.tree.depth)
        return visible_slots(self.span, self.start, self.positions, self.config.sliding_window, *above)

    @property
    def _ancestors(self) -> Tensor:
        """``[B, width, N]`` bool: which nodes each of those that attend has above it, itself included."""
        return self.tree.ancestors[:, self.num_cached :]

    @cached_property
    def _order(self) -> Tensor:
        """``[1, B, N, 1, T - shared]``: the slot at each position after the shared blocks, as a permutation."""
        identity = torch.arange(self.span - self.shared, device=self.start.device)
        ancestors_first = (~self._ancestors).long().argsort(dim=2, stable=True)
        slots = (self._slots - self.shared).unsqueeze(1).expand(-1, self.width, -1)
        order = identity.expand(self.batch, self.width, -1)
        order = order.scatter(2, slots, (self.start - self.shared).unsqueeze(2) + ancestors_first)
        return order.view(1, self.batch, self.width, 1, -1)

    def _by_position(self, scores: Tensor) -> Tensor:
        """Permute the scores after the shared blocks from slots to positions, in place."""
        nodes = self._nodes(scores)[..., self.shared :]
        nodes.copy_(nodes.gather(-1, self._order.expand(nodes.shape)))
        return scores

    def _by_slot(self, part: Tensor, begin: int) -> Tensor:
        """Return the weights of a block of positions at the slots ``begin .. begin + block + N - 1`` that hold them."""
        end = min(begin + self.block + self.tree.size - 1, self.span)
        nodes = self._nodes(part.contiguous())
        order = self._order[..., begin - self.shared : begin - self.shared + self.block]
        spread = part.new_zeros(*part.shape[:-1], self.span - self.shared)
        self._nodes(spread).scatter_(-1, order.expand(nodes.shape), nodes)
        return spread[..., begin - self.shared : end - self.shared]
