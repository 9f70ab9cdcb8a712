"""Caches whose rows are tables of pages: 16 slots lie together, and a row's table says which pages it has."""

import math
from abc import ABC, abstractmethod
from typing import Self

import numpy as np
import torch
from torch import Tensor

from specdec.cache.page_pool import PAGE, PagePool, count_pages
from specdec.cache.slot_cache import SlotCache, check_fits
from specdec.contracts import IntArray
from specdec.transfers import on_device, on_host, together_on_device


class PageMemory(ABC):
    """Hold the contents of pages; a subclass says how they are laid out.

    Args:
        num_pages: of them.

    Attributes:
        pool: says which of them are in use.
    """

    def __init__(self, num_pages: int) -> None:
        self.pool = PagePool(num_pages)

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors ``[...]`` that hold the pages, laid out as the subclass says."""

    @abstractmethod
    def clear(self, pages: IntArray) -> None:
        """Fill pages ``[K]`` with zeros."""

    @abstractmethod
    def copy(self, num_pages: int) -> Self:
        """Return a memory of more pages, the first of which hold what those of this one do."""


class PagedCache(SlotCache):
    """Keep the books of rows whose slots lie in pages: slot s of a row lies in page ``s // 16`` of its table.

    A page that several rows read, or that later ones may find by its text, is full and stands: rows that have it are
    not rolled back before its end. So no shared page is ever written to, and none has to be copied for that.

    Args:
        memory: holds the pages; every row gets enough of them for all its slots.
        num_rows: rows.
        capacity: slots per row.
        is_seated: rows have pages at once, for all their slots; otherwise ``seat`` gives them some.

    Attributes:
        memory: the same.
        pages: ``[num_rows, P]`` int32 the pages of each row; places beyond them hold how many pages the memory has.
        rooms: ``[num_rows]`` slots that a row has pages for.
    """

    def __init__(self, memory: PageMemory, num_rows: int, capacity: int, is_seated: bool = True) -> None:
        super().__init__(num_rows, capacity)
        self.memory = memory
        # Compiled code may be told where these lie: they stay the same arrays.
        self.pages = np.full((num_rows, count_pages(capacity)), memory.pool.num_pages, dtype=np.int32)
        self.rooms: IntArray = np.zeros(num_rows, dtype=np.int64)
        memory.pool.watch(self, self.pages, self.rooms)
        for row in range(num_rows if is_seated else 0):
            self._take(row, 0, capacity)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those of the memory, see ``PageMemory.tensors``."""
        return self.memory.tensors

    def _empty(self, rows: IntArray) -> None:
        for row in rows.tolist():
            self._give_back(row)
            self._take(row, 0, self.capacity)

    def seat(self, row: int, known: IntArray, num_slots: int) -> None:
        """Empty a row for a new occupant whose first slots stand already.

        Args:
            row: of the cache.
            known: ``[K]`` the pages that hold them, as ``PagePool.find`` returns them.
            num_slots: that the row needs, including those.

        Raises:
            ValueError: there are not enough pages.
        """
        self.vacate(np.array([row]))
        uses, count = self.memory.pool.uses, len(known)
        self.pages[row, :count], self.rooms[row] = known, count * PAGE
        uses[known] += 1
        self._lengths[row] = self._written[row] = self._shared[row] = len(known) * PAGE
        self._take(row, len(known), num_slots)

    def keep(self, row: int, ids: IntArray) -> None:
        """Let later occupants find what a row holds.

        Args:
            row: of the cache.
            ids: ``[L]`` of its first slots, which stand; their full pages are kept.
        """
        count = len(ids) // PAGE
        self.memory.pool.keep(ids, self.pages[row, :count].astype(np.int64))
        self._shared[row] = max(int(self._shared[row]), count * PAGE)

    def vacate(self, rows: IntArray) -> None:
        """Give the pages of rows ``[B]`` back: they have no occupants."""
        for row in rows.tolist():
            self._give_back(row)
        self._lengths[rows] = self._written[rows] = 0

    def give_up(self) -> None:
        """Give the pages of all rows back, as when the cache is gone: nobody uses it from here on.

        Guarantee: it may be called at any time, and more than once.
        """
        self.memory.pool.give_back_all(self.pages, self.rooms)

    def _take(self, row: int, first: int, num_slots: int) -> None:
        """Give a row pages from its ``first`` one on, cleared, so that it has as many as that many slots take."""
        pool, count = self.memory.pool, count_pages(num_slots)
        taken, uses = pool.take(count - first), pool.uses
        self.pages[row, first:count], self.rooms[row] = taken, count * PAGE
        uses[taken] += 1
        # A masked slot has weight 0, but 0 * NaN is NaN: the number itself must go, not only its weight.
        if (dirty := taken[pool.is_dirty[taken]]).size:
            self.memory.clear(dirty)
            pool.is_dirty[dirty] = False

    def _give_back(self, row: int) -> None:
        """Give the pages of a row back. *Guarantee*: each goes back once, wherever Ctrl-C comes."""
        pool = self.memory.pool
        pool.give_back(self.pages, self.rooms, row, count_pages(int(self._written[row])))
        self.pages[row], self._shared[row] = pool.num_pages, 0

    def lines(self, rows: IntArray, slots: IntArray) -> IntArray:
        """Return where slots lie, counted in slots over all pages; beyond a row's pages, in the page after the last.

        Args:
            rows, slots: ``[...]`` of one shape, or of shapes that numpy broadcasts to one: that of the answer.
        """
        lines: IntArray = self.pages[rows, slots // PAGE].astype(np.int64) * PAGE + slots % PAGE
        return lines

    def span(self, rows: IntArray, num_pages: int) -> IntArray:
        """Return ``[B, num_pages]`` the first pages of rows; after a row's last page its first one repeats."""
        pages = self.pages[rows, :num_pages].astype(np.int64)
        return np.where(pages < self.memory.pool.num_pages, pages, pages[:, :1])


class TensorMemory(PageMemory):
    """Hold pages in one tensor.

    Args:
        leading, trailing: of the tensor's shape, around the slots of all pages.
        num_pages: that rows can have.
        dtype, device: of the numbers.
        num_spare: 1: one more page takes what is written beyond the pages of a row; 0: every row has pages for all
            slots.

    Attributes:
        lines: ``[*leading, 16 * (num_pages + num_spare), *trailing]``.
        line_dim: where the slots are.
    """

    def __init__(
        self,
        leading: tuple[int, ...],
        trailing: tuple[int, ...],
        num_pages: int,
        dtype: torch.dtype,
        device: torch.device,
        num_spare: int = 1,
    ) -> None:
        super().__init__(num_pages)
        self._shape = leading, trailing
        self.line_dim, self._num_spare = len(leading), num_spare
        self.lines = torch.zeros(*leading, (num_pages + num_spare) * PAGE, *trailing, dtype=dtype, device=device)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """``lines`` alone, ``[*leading, 16 * (num_pages + num_spare), *trailing]``."""
        return (self.lines,)

    def by_page(self) -> Tensor:
        """Return ``[*leading, num_pages + num_spare, 16, *trailing]``, the same memory."""
        shape = self.lines.shape
        return self.lines.view(*shape[: self.line_dim], -1, PAGE, *shape[self.line_dim + 1 :])

    def clear(self, pages: IntArray) -> None:
        """Fill pages ``[K]`` with zeros."""
        self.by_page().index_fill_(self.line_dim, on_device(pages, self.lines.device), 0)

    def copy(self, num_pages: int) -> "TensorMemory":
        """Return a memory of more pages, the first of which hold what those of this one do. Cost: a copy of them."""
        other = TensorMemory(*self._shape, num_pages, self.lines.dtype, self.lines.device, self._num_spare)
        count = self.pool.num_pages * PAGE
        other.lines.narrow(self.line_dim, 0, count).copy_(self.lines.narrow(self.line_dim, 0, count))
        other.pool.inherit(self.pool)
        return other


class PagedKVCache(PagedCache):
    """Hold a payload per row and slot in the pages of one tensor.

    Args:
        memory, num_rows, capacity, is_seated: see ``PagedCache``.

    Cost: ``commit`` of a chain, ``truncate``: a length; of a tree: one gather of the path.
    """

    memory: TensorMemory

    @classmethod
    def alone(
        cls,
        leading: tuple[int, ...],
        trailing: tuple[int, ...],
        num_rows: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        max_bytes: int | None = None,
    ) -> Self:
        """Return a cache with a memory of its own.

        Args:
            leading, trailing, dtype, device: see ``TensorMemory``.
            num_rows: rows.
            capacity: slots per row; memory is taken for whole pages.
            max_bytes: refuse to be larger (None: half of the memory that is free).

        Raises:
            ValueError: the payload would exceed ``max_bytes``.

        Cost: ``bytes``, allocated once.
        """
        per_row = count_pages(capacity)
        slot = math.prod(leading) * math.prod(trailing) * dtype.itemsize
        check_fits(num_rows * per_row * PAGE * slot, num_rows, capacity, max_bytes, device)
        return cls(TensorMemory(leading, trailing, num_rows * per_row, dtype, device, 0), num_rows, capacity)

    @property
    def payload(self) -> Tensor:
        """``[*leading, 16 * P, *trailing]`` the slots of all P pages, a spare one included.

        ``lines`` says where those of rows lie.
        """
        return self.memory.lines

    def _gather(self, rows: IntArray, path: Tensor, num_kept: IntArray) -> None:
        nodes = on_host(path)
        at, column = np.nonzero(np.arange(nodes.shape[1]) < num_kept[:, None])
        moves = nodes[at, column] != column
        at, column = at[moves], column[moves]
        row, start = rows[at], self._lengths[rows[at]]
        moved = self.lines(row, start + nodes[at, column]), self.lines(row, start + column)
        source, target = together_on_device(*moved, device=self.payload.device)
        dim = self.memory.line_dim
        self.payload.index_copy_(dim, target, self.payload.index_select(dim, source))
