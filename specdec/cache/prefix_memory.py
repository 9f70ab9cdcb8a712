"""Memories of pages that outlive runs, and rows of caches that begin with what such a memory holds of their texts."""

import weakref
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from specdec.cache.page_pool import PAGE, count_pages
from specdec.cache.paged_cache import PagedCache
from specdec.cache.slot_cache import check_fits
from specdec.contracts import Cache, IntArray, Oracle, PrefixOracle, capability_of


class PrefixMemory:
    """Keep a model's memory of pages from one run to the next.

    Args:
        model: whose memory.
        max_bytes: bound on the memory; None: twice as many pages as a run's rows can fill, within half of what is free.
    """

    def __init__(self, model: PrefixOracle, max_bytes: int | None = None) -> None:
        self._model, self._max_bytes = model, max_bytes
        self._memory: Any = None
        self._key: Any = None
        # Pages that the rows of each run under way can fill.
        self._taken: weakref.WeakKeyDictionary[PagedCache, int] = weakref.WeakKeyDictionary()

    def open(self, num_rows: int, capacity: int) -> PagedCache:
        """Return a cache for a run, whose rows have no pages yet.

        If nothing bounds the memory, it has pages for all slots of all rows, beside those of other runs under way.

        Raises:
            ValueError: such a memory would take more than half of what is free.
        """
        count = num_rows * count_pages(capacity)
        self._make_room(count)
        cache: PagedCache = self._model.cache_on(self._memory, num_rows, capacity)
        self._taken[cache] = count
        return cache

    def _make_room(self, count: int) -> None:
        """Have a memory that holds what was computed with these weights, of enough pages if nothing bounds them."""
        if (key := self._model.prefix_key) != self._key:
            self._memory, self._key = None, key
            self._taken.clear()
        held = 0 if self._memory is None else self._memory.pool.num_pages
        # A later run may write to it outside of this one's inference mode.
        with torch.inference_mode(False):
            if self._memory is None:
                self._memory = self._model.new_memory(self._num_pages(count))
            elif self._max_bytes is None and held < count + sum(self._taken.values()):
                self._memory = self._memory.copy(max(self._num_pages(count), held))
                self._taken.clear()

    def _num_pages(self, count: int) -> int:
        """Return how many pages a memory has for rows that can fill ``count`` of them."""
        size = self._model.page_bytes
        if self._max_bytes is not None:
            # One more page is the one that padding may be written to.
            return max(self._max_bytes // size - 1, 0)
        check_fits(2 * count * size, 2, count * PAGE, None, self._model.device)
        return 2 * count


class FreshRows:
    """Rows that every request finds empty; see ``specdec.contracts.PromptRows``.

    Args:
        cache: the rows'.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    def begin(self, rows: IntArray, texts: Sequence[IntArray]) -> None:
        """Empty ``rows`` ``[B]``: nothing of a text is there. See ``PromptRows.begin``."""
        self.cache.reset(rows)

    def keep(self, rows: IntArray, texts: Sequence[IntArray]) -> None:
        """Learn nothing; see ``PromptRows.keep``."""
        return

    def end(self, rows: IntArray, texts: Sequence[IntArray]) -> None:
        """Forget what ``rows`` ``[B]`` hold; see ``PromptRows.end``."""
        self.cache.truncate(rows, np.zeros_like(rows))


class KnownRows:
    """Rows that begin with the known beginnings of their texts; see ``specdec.contracts.PromptRows``.

    A row has pages for all its slots at all times, so that it never has to wait for some.

    Args:
        cache: of ``PrefixMemory.open``.
        num_slots: of each row.

    Attributes:
        cache: the same.
        num_known: tokens that stood when a text began.
    """

    def __init__(self, cache: PagedCache, num_slots: int) -> None:
        self.cache, self._num_slots, self.num_known = cache, num_slots, 0
        for row in range(cache.num_rows):
            cache.seat(row, np.zeros(0, dtype=np.int64), num_slots)

    def begin(self, rows: IntArray, texts: Sequence[IntArray]) -> None:
        """Seat each row on the pages that hold the known beginning of its text; see ``PromptRows.begin``.

        Raises:
            ValueError: there are not enough pages.
        """
        for row, text in zip(rows.tolist(), texts, strict=True):
            known = self.cache.memory.pool.find(text)
            self.cache.seat(row, known, self._num_slots)
            self.num_known += len(known) * PAGE

    def keep(self, rows: IntArray, texts: Sequence[IntArray]) -> None:
        """Let later rows find the full pages of these; see ``PromptRows.keep``."""
        for row, text in zip(rows.tolist(), texts, strict=True):
            self.cache.keep(row, text)

    def end(self, rows: IntArray, texts: Sequence[IntArray]) -> None:
        """Let later rows find the full pages of these; see ``PromptRows.end``."""
        self.keep(rows, texts)


class ModelPrefixes:
    """Keep the memories of the models that a source drafts with; see ``specdec.contracts.DraftPrefixes``."""

    def __init__(self) -> None:
        self._memories: dict[int, tuple[Oracle, PrefixMemory]] = {}
        self._rows: list[KnownRows] = []

    def open(self) -> "ModelPrefixes":
        """Return what a run is given: the same memories, and a count of its own."""
        run = ModelPrefixes()
        run._memories = self._memories
        return run

    @property
    def num_known(self) -> int:
        """Tokens of prompts that stood already when rows of this run began."""
        return sum(rows.num_known for rows in self._rows)

    def rows_of(self, model: Oracle, num_rows: int, num_slots: int) -> KnownRows | None:
        """See ``specdec.contracts.DraftPrefixes``."""
        if capability_of(model, "prefix_key") is None:
            return None
        if id(model) not in self._memories:
            self._memories[id(model)] = model, PrefixMemory(cast(PrefixOracle, model))
        rows = KnownRows(self._memories[id(model)][1].open(num_rows, num_slots), num_slots)
        self._rows.append(rows)
        return rows
