"""Keys and values as the native pass reads and writes them."""

import ctypes

import torch
from torch import Tensor

from oracles.native import bindings
from oracles.native.host_memory import to_bytes, zeros
from oracles.native.packed_blocks import WIDTH
from oracles.native.packing import round_up
from oracles.transformer.config import TransformerConfig
from specdec.cache import PAGE, PagedCache, PageMemory, check_fits, count_pages
from specdec.contracts import IntArray
from specdec.transfers import on_host


def page_bytes(config: TransformerConfig) -> int:
    """Return the bytes of the keys and values of a page."""
    size = config.head_size
    return 4 * config.num_layers * config.kv_heads * PAGE * (size + round_up(size, WIDTH))


class NativeMemory(PageMemory):
    """Hold keys and values in float32 on the host: keys with a page's 16 slots side by side, values slot by slot.

    Args:
        config: the model's shape.
        num_pages: pages.

    Attributes:
        config: see above.
        keys: ``[layers, KV heads, num_pages, head size, 16]``.
        values: ``[layers, KV heads, num_pages, 16, head size rounded up to 16]``.
    """

    def __init__(self, config: TransformerConfig, num_pages: int) -> None:
        super().__init__(num_pages)
        self.config = config
        size, leading = config.head_size, (config.num_layers, config.kv_heads, num_pages)
        self.keys = zeros(*leading, size, PAGE)
        self.values = zeros(*leading, PAGE, round_up(size, WIDTH))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Keys and values, ``[layers, KV heads, num_pages, ...]`` each; see the class."""
        return self.keys, self.values

    def clear(self, pages: IntArray) -> None:
        """Fill pages ``[P]`` with zeros."""
        at = torch.from_numpy(pages)
        self.keys.index_fill_(2, at, 0)
        self.values.index_fill_(2, at, 0)

    def copy(self, num_pages: int) -> "NativeMemory":
        """Return a memory of more pages, ``num_pages``, the first of which hold what those of this one do."""
        other, count = NativeMemory(self.config, num_pages), self.pool.num_pages
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            theirs[:, :, :count] = mine
        other.pool.inherit(self.pool)
        return other

    @classmethod
    def for_rows(
        cls, config: TransformerConfig, num_rows: int, capacity: int, max_bytes: int | None, feature_bytes: int = 0
    ) -> "NativeMemory":
        """Return a memory with pages for all slots of some rows.

        Args:
            config: the model's shape.
            num_rows, capacity: rows, and slots of each.
            max_bytes: the largest size allowed (None: half of the free memory).
            feature_bytes: bytes held elsewhere for each slot, and once more after a row's last slot; counted too.

        Raises:
            ValueError: it would exceed ``max_bytes``.

        Cost: 4 * layers * KV heads * (head size + head size rounded up to 16) * rows * capacity bytes.
        """
        per_row = count_pages(capacity)
        row_bytes = per_row * page_bytes(config) + feature_bytes * (per_row * PAGE + 1)
        check_fits(num_rows * row_bytes, num_rows, per_row * PAGE, max_bytes, torch.device("cpu"))
        return cls(config, num_rows * per_row)


class NativeCache(PagedCache):
    """Hold keys and values of rows in pages.

    Compiled code that drafts updates the lengths by itself.

    Args:
        memory, num_rows, is_seated: see ``PagedCache``.
        model: the model's structure, of which only sizes are read.
        capacity: slots per row, rounded up to whole pages.

    Attributes:
        config: the shape of the models whose keys and values it holds.

    Cost: ``commit`` of a chain and ``truncate`` set a length; ``commit`` of a tree copies the path's keys and values.
    """

    memory: NativeMemory

    def __init__(
        self, memory: NativeMemory, model: bindings.Model, num_rows: int, capacity: int, is_seated: bool = True
    ) -> None:
        super().__init__(memory, num_rows, count_pages(capacity) * PAGE, is_seated)
        self.config = memory.config
        self.struct = bindings.Cache(
            keys=self.memory.keys.data_ptr(),
            values=self.memory.values.data_ptr(),
            pages=self.pages.ctypes.data,
            rooms=self.rooms.ctypes.data,
            lengths=self._lengths.ctypes.data,
            written=self._written.ctypes.data,
            num_rows=num_rows,
            slots=self.capacity,
            num_pages=self.memory.pool.num_pages,
        )
        self.address = ctypes.addressof(self.struct)
        self.lengths_address = self._lengths.ctypes.data
        self._model = model

    def _gather(self, rows: IntArray, path: Tensor, num_kept: IntArray) -> None:
        keep, model = bindings.functions().specdec_keep, ctypes.addressof(self._model)
        starts, kept = self._lengths[rows], zip(on_host(path), num_kept.tolist(), strict=True)
        for row, start, (ids, count) in zip(rows.tolist(), starts.tolist(), kept, strict=True):
            keep(model, self.address, row, start, to_bytes(ids[:count]), count)
