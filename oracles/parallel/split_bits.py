"""Check, with a model's own shapes, that a share of it computes the same bits as the whole."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from oracles.parallel.shares import Share
from oracles.transformer.attention import CachedAttention, cache_shape
from oracles.transformer.config import TransformerConfig
from oracles.transformer.linear import Linear
from specdec.cache import PagedKVCache
from specdec.contracts import Tree
from specdec.transfers import HOST

_ROWS = (1, 8, 33)
# Positions that cross a block of the attention.
_CHAINS = [70, 1, 5]


def has_bitwise_splits(share: Share) -> bool:
    """Tell whether this process's layers compute the same bits as the smallest parts that any process could have.

    Different numbers of processes are compared through these parts: shares that all equal them equal each other. The
    parts are computed by one thread. Layers that are summed over blocks are cut into the same blocks by every process.

    Args:
        share: of this process, in float32 on a CPU; with ``num_blocks``.

    Cost: products of random numbers of the shapes of one layer and of the head.
    """
    config, blocks = share.config, share.num_blocks or 1
    of_heads = (config.num_heads // config.kv_heads + 2) * config.head_size
    inner = _parts(share, share.whole.intermediate_size, blocks)
    ids = _parts(share, share.whole.vocab_size, blocks)
    products = [(None, [of_heads] * config.kv_heads), (config.activation, inner), (None, ids)]
    return _heads_agree(config) and all(
        _product_agrees(config.hidden_size, parts, activation) for activation, parts in products
    )


def _parts(share: Share, size: int, blocks: int) -> list[int]:
    """Return the widths of the blocks in a process's part of ``size`` outputs."""
    first, last = share.own(size)
    bounds = [bound for bound in (size * i // blocks for i in range(blocks + 1)) if first <= bound <= last]
    return [end - begin for begin, end in pairwise(bounds)]


@contextmanager
def _one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _pack(weight: Tensor, activation: str | None) -> Linear:
    layer = Linear.of(weight)
    layer.activation = activation
    layer.pack()
    return layer


def _product_agrees(in_features: int, parts: Sequence[int], activation: str | None) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(sum(parts), in_features, generator=generator, device=HOST)
    given = [torch.randn(rows, in_features, generator=generator, device=HOST) for rows in _ROWS]
    whole = _pack(weight, activation)
    together = [whole(x) for x in given]
    with _one_thread():
        layers = [_pack(part, activation) for part in torch.split(weight, [*parts])]
        apart = [torch.cat([layer(x) for layer in layers], dim=-1) for x in given]
    return all(map(torch.equal, together, apart))


def _heads_agree(config: TransformerConfig) -> bool:
    generator, size = torch.Generator().manual_seed(0), config.head_size
    shapes = [(sum(_CHAINS), heads, size) for heads in (config.num_heads, config.kv_heads, config.kv_heads)]
    given = [torch.randn(shape, generator=generator, device=HOST) for shape in shapes]
    together = _attend(config, given)
    with _one_thread():
        alone = replace(config, num_heads=config.num_heads // config.kv_heads, num_kv_heads=1)
        parts = zip(*(part.chunk(config.kv_heads, dim=1) for part in given), strict=True)
        return torch.equal(together, torch.cat([_attend(alone, part) for part in parts], dim=-1))


def _attend(config: TransformerConfig, given: Sequence[Tensor]) -> Tensor:
    """Return the attention ``[T, H * D]`` of chains ``[T, heads, D]`` of queries, keys and values, chain by chain."""
    leading, trailing, slots = cache_shape(replace(config, num_layers=1), sum(_CHAINS))
    cache = PagedKVCache.alone(leading, trailing, 1, slots, torch.float32, HOST, None)
    rows, outs = np.zeros(1, dtype=np.int64), []
    for query, key, value in zip(*(torch.split(part, _CHAINS) for part in given), strict=True):
        ids, count = torch.zeros(1, len(query), dtype=torch.long, device=HOST), torch.tensor([len(query)], device=HOST)
        outs.append(CachedAttention(config, Tree(ids, None, count), cache, rows)(0, query, key, value))
        cache.commit(rows, None, np.array([len(query)]))
    return torch.cat(outs)
