"""Which pages of a memory are in use: plain bookkeeping, testable without a model."""

import numpy as np

from specdec.contracts import IntArray

PAGE = 16
"""Slots of a page."""


def count_pages(num_slots: int) -> int:
    """Return how many pages hold so many slots."""
    return -(-num_slots // PAGE)


class PagePool:
    """Hand out the pages of a memory, and take them back.

    Args:
        num_pages: of the memory.

    Attributes:
        num_pages: as given.
        is_dirty: ``[num_pages]`` bool: which of them may hold something else than zeros.

    Cost: of ``take`` O(num_pages).
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.is_dirty = np.zeros(num_pages, dtype=np.bool_)
        self._is_free = np.ones(num_pages, dtype=np.bool_)

    @property
    def num_free(self) -> int:
        """Pages that can be taken."""
        return int(np.count_nonzero(self._is_free))

    def take(self, count: int) -> IntArray:
        """Return ``count`` pages that nobody uses, side by side if so many are.

        Raises:
            ValueError: there are fewer.
        """
        free = np.flatnonzero(self._is_free)
        if count > len(free):
            raise ValueError(f"{count} pages are asked for, and {len(free)} of {self.num_pages} are free")
        if not count:
            return free[:0]
        runs = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1)
        first = int(runs[0]) if runs.size else 0
        taken = free[first : first + count]
        self._is_free[taken] = False
        return taken

    def give_back(self, pages: IntArray) -> None:
        """Let others take pages."""
        self._is_free[pages] = True
