"""The contract of an oracle whose caches read pages, so that rows can share what is known of a common beginning."""

from collections.abc import Hashable
from typing import Any, Protocol

from specdec.contracts.oracle import Oracle


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
