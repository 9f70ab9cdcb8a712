"""Keys and values as the native pass reads and writes them."""

import ctypes

import numpy as np
import torch
from torch import Tensor

from oracles.native import bindings
from oracles.native.host_memory import floats, to_bytes
from oracles.native.packed_blocks import WIDTH
from oracles.native.packing import round_up
from oracles.transformer.config import TransformerConfig
from specdec.cache import SlotCache, check_fits, free_memory
from specdec.contracts import IntArray
from specdec.transfers import on_host


def cache_bytes(config: TransformerConfig, num_rows: int, capacity: int) -> tuple[int, int]:
    """Return the slots of a row, and the bytes of all keys and values."""
    slots, size = round_up(capacity, WIDTH), config.head_size
    heads = config.num_layers * num_rows * config.kv_heads
    return slots, 4 * heads * slots * (size + round_up(size, WIDTH))


class NativeCache(SlotCache):
    """Hold the keys of 16 slots side by side, and values slot by slot, in float32 on the host.

    Compiled code that drafts keeps its books by itself.

    Args:
        config: the model's shape.
        model: its structure; only sizes are read.
        num_rows: sequences.
        capacity: slots per row, rounded up to whole groups of 16.
        max_bytes: refuse to be larger (None: half of the memory that is free).

    Raises:
        ValueError: it would exceed ``max_bytes``.

    Cost: 4 * layers * KV heads * (head size + head size rounded up to 16) * rows * capacity bytes, allocated once.
        ``commit`` of a chain, ``truncate``: a length; of a tree: one copy of the path's keys and values.
    """

    def __init__(
        self,
        config: TransformerConfig,
        model: bindings.Model,
        num_rows: int,
        capacity: int,
        max_bytes: int | None = None,
    ) -> None:
        size, (slots, needed) = config.head_size, cache_bytes(config, num_rows, capacity)
        limit = free_memory(torch.device("cpu")) // 2 if max_bytes is None else max_bytes
        check_fits(needed, num_rows, slots, limit)
        super().__init__(num_rows, slots)
        leading = (config.num_layers, num_rows, config.kv_heads)
        self.keys = floats(*leading, slots // WIDTH, size, WIDTH).zero_()
        self.values = floats(*leading, slots, round_up(size, WIDTH)).zero_()
        books = self._lengths.ctypes.data, self._written.ctypes.data
        self.struct = bindings.Cache(self.keys.data_ptr(), self.values.data_ptr(), *books, num_rows, slots)
        self.address = ctypes.addressof(self.struct)
        self.lengths_address = books[0]
        self._model = model

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Keys and values."""
        return self.keys, self.values

    def _gather(self, rows: IntArray, path: Tensor, num_kept: IntArray) -> None:
        keep, model = bindings.functions().specdec_keep, ctypes.addressof(self._model)
        starts, kept = self._lengths[rows], zip(on_host(path), num_kept.tolist(), strict=True)
        for row, start, (ids, count) in zip(rows.tolist(), starts.tolist(), kept, strict=True):
            keep(model, self.address, row, start, to_bytes(ids[:count]), count)

    def _clear(self, rows: IntArray, used: int) -> None:
        at = torch.from_numpy(np.ascontiguousarray(rows))
        self.keys[:, :, :, : round_up(used, WIDTH) // WIDTH].index_fill_(1, at, 0)
        self.values[:, :, :, :used].index_fill_(1, at, 0)
