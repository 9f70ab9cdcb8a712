"""Put features of ragged rows into a cache."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from specdec.cache import PagedKVCache
from specdec.contracts import IntArray
from specdec.transfers import on_device


def append_positions(
    cache: PagedKVCache, rows: IntArray, counts: IntArray, write: Callable[[Tensor, Tensor, Tensor, Tensor], None]
) -> None:
    """Put positions into a cache, after the committed ones of its rows.

    Args:
        cache: the cache.
        rows: ``[B]`` of its rows.
        counts: ``[B]`` new positions of each.
        write: writes them. It is given, for each of P real positions, its line in the memory of the cache, its slot,
            and its place ``[b, i]`` among features: four tensors ``[P]`` on the cache's device. It is not called if P
            is 0.

    Cost: one copy of indices, besides ``write``.
    """
    first = cache.reserve(rows, counts)
    at, column = np.nonzero(np.arange(int(counts.max())) < counts[:, None])
    if at.size:
        slots = first[at] + column
        places = np.stack([cache.lines(rows[at], slots), slots, at, column])
        write(*on_device(places, cache.payload.device).unbind())
    cache.commit(rows, None, counts)
