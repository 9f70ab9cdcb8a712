"""Which pages of a memory are in use, and which texts they hold: plain bookkeeping, testable without a model."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from specdec.contracts import IntArray

PAGE = 16
"""Slots of a page."""


def count_pages(num_slots: int) -> int:
    """Return how many pages hold that many slots."""
    return -(-num_slots // PAGE)


class KeptPage(NamedTuple):
    """A full page of a text.

    Attributes:
        page: its number.
        before: that of the page before it in the text; -1: it is the first.
        ids: its own ids, as bytes.
    """

    page: int
    before: int
    ids: bytes


class PagePool:
    """Hand out the pages of a memory, take them back, and know which texts full ones hold.

    A page is in use by any number of rows. If it holds a part of a known text, it stays when the last row leaves it,
    until somebody takes pages and no others are left. The one that was least recently looked up goes first, and the
    end of a text before its beginning.

    Args:
        num_pages: of the memory.

    Attributes:
        num_pages: as given.
        uses: ``[num_pages]`` rows that use each page. A row counts itself right after it has written down which pages
            it has, and nothing is called in between: Python raises Ctrl-C at calls and jumps, so no page is lost.
        is_dirty: ``[num_pages]`` bool: which of them may hold something else than zeros.
        num_evicted: pages of known texts that were given away.

    Guarantee: ``find`` compares ids, and not only their hashes. Threads take turns: the caller sees to that.
    Cost: of ``take`` O(num_pages); of ``find`` and ``keep`` a hash a page.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.is_dirty = np.zeros(num_pages, dtype=np.bool_)
        self.num_evicted = 0
        self.uses: IntArray = np.zeros(num_pages, dtype=np.int64)
        # By the hash of all ids up to the page's last one; the least recently looked up first.
        self._kept: OrderedDict[bytes, KeptPage] = OrderedDict()
        self._is_kept = np.zeros(num_pages, dtype=np.bool_)
        self._left: list[IntArray] = []

    @property
    def num_free(self) -> int:
        """Pages that no row uses; those of rows that are gone come back first, each once, wherever Ctrl-C comes."""
        while self._left:
            pages = self._left[0]  # finalizers may append meanwhile
            self.is_dirty[pages] = True
            # Nothing is called from here to the next round, see ``uses``.
            self.uses[pages] -= 1
            del self._left[0]
        return int(np.count_nonzero(self.uses == 0))

    def count_unused(self, pages: IntArray) -> int:
        """Return how many of some pages no row uses."""
        return int(np.count_nonzero(self.uses[pages] == 0))

    def take(self, count: int) -> IntArray:
        """Return ``count`` pages that nobody uses, side by side if possible; whoever books them counts their uses.

        Raises:
            ValueError: there are fewer.
        """
        if count > self.num_free:
            raise ValueError(f"{count} pages are asked for, and {self.num_free} of {self.num_pages} are free")
        free = np.flatnonzero((self.uses == 0) & ~self._is_kept)
        if count > len(free):
            self._evict(count - len(free))
            free = np.flatnonzero((self.uses == 0) & ~self._is_kept)
        if not count:
            return free[:0]
        runs = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1)
        first = int(runs[0]) if runs.size else 0
        return free[first : first + count]

    def leave(self, pages: IntArray) -> None:
        """Take pages from a row that is gone, as of the next count of free pages.

        Guarantee: it is the only method that may be called at any time and by any thread, as finalizers are.
        """
        self._left.append(pages)

    def find(self, ids: IntArray) -> IntArray:
        """Return the pages that hold the longest known beginning of a text, whole pages of it.

        Args:
            ids: ``[L]`` the text.
        """
        return np.array([self._kept[digest].page for digest in self._walk(ids)], dtype=np.int64)

    def keep(self, ids: IntArray, pages: IntArray) -> None:
        """Know from now on which text pages hold; those of a beginning that is known already stay as they are.

        Args:
            ids: ``[L]`` the text.
            pages: its full pages, L // 16 of them; they are not written to any more.
        """
        known = self._walk(ids)
        before = self._kept[known[-1]].page if known else -1
        for page, (digest, part) in list(zip(pages.tolist(), _chain(ids), strict=True))[len(known) :]:
            if digest in self._kept or self._is_kept[page]:
                break  # what follows another beginning, which is gone
            self._kept[digest] = KeptPage(page, before, part)
            self._is_kept[page], before = True, page
        self._walk(ids)

    def inherit(self, other: "PagePool") -> None:
        """Know the texts that another pool knows, whose pages were copied; nobody uses them here."""
        self._kept = other._kept.copy()
        self._is_kept[: other.num_pages], self.is_dirty[: other.num_pages] = other._is_kept, True

    def _walk(self, ids: IntArray) -> list[bytes]:
        """Look up the pages of a text, as far as they are known; return what they are known by."""
        known: list[bytes] = []
        before = -1
        for digest, part in _chain(ids):
            kept = self._kept.get(digest)
            if kept is None or (kept.ids, kept.before) != (part, before):
                break
            known.append(digest)
            before = kept.page
        for digest in reversed(known):
            self._kept.move_to_end(digest)
        return known

    def _evict(self, count: int) -> None:
        """Forget the texts of the ``count`` least recently looked up pages that nobody uses."""
        unused = [digest for digest, kept in self._kept.items() if not self.uses[kept.page]]
        for digest in unused[:count]:
            page = self._kept[digest].page
            # Nothing is called from here to the next round, see ``uses``.
            self._is_kept[page], self.is_dirty[page] = False, True
            self.num_evicted += 1
            del self._kept[digest]


def _chain(ids: IntArray) -> Iterator[tuple[bytes, bytes]]:
    """Yield, for each full page of a text, the hash of all ids up to its last one, and its own ids."""
    digest = b""
    for end in range(PAGE, len(ids) + 1, PAGE):
        part = ids[end - PAGE : end].astype(np.int64).tobytes()
        digest = hashlib.blake2b(digest + part, digest_size=16).digest()
        yield digest, part
