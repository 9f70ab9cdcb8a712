"""Contracts of what is shared of prompts: oracles whose caches read pages, and the rows that draft models get."""

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from specdec.contracts.arrays import IntArray
from specdec.contracts.oracle import Cache, Oracle


class PrefixOracle(Oracle, Protocol):
    """An oracle whose caches are tables of pages on a memory that they may share."""

    @property
    def prefix_key(self) -> Hashable:
        """What the contents of pages depend on beside ids: the model, its weights, their dtype, the arithmetic."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page of a memory."""

    def new_memory(self, num_pages: int) -> Any:
        """Return an empty ``specdec.cache.PageMemory``."""

    def cache_on(self, memory: Any, num_rows: int, capacity: int) -> Any:
        """Return a ``specdec.cache.PagedCache`` on a memory of ``new_memory``, whose rows have no pages yet."""


class PromptRows(Protocol):
    """The rows of a draft model's cache in one run: they may begin with what is known of a text."""

    @property
    def cache(self) -> Cache:
        """Their cache."""

    def begin(self, rows: IntArray, texts: Sequence[IntArray]) -> None:
        """Empty rows for new occupants; ``cache.lengths`` says how many ids of each text stand there already."""

    def keep(self, rows: IntArray, texts: Sequence[IntArray]) -> None:
        """Learn what stands in rows; later ones may find it, so they are not cut back into its full pages."""

    def end(self, rows: IntArray, texts: Sequence[IntArray]) -> None:
        """Learn what stands in rows whose requests have ended."""


class Prefixes(Protocol):
    """What a decoder keeps, from one run to the next, of the texts that draft models have read."""

    def rows_of(self, model: Oracle, num_rows: int, num_slots: int) -> PromptRows | None:
        """Return rows for a run of a model; None: the rows of its caches are no tables of pages."""
