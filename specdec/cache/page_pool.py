"""Which pages of a memory are in use, and which texts they hold: plain bookkeeping, testable without a model."""

import hashlib
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import IntArray

PAGE = 16
"""Slots of a page."""


def count_pages(num_slots: int) -> int:
    """Return how many pages hold ``num_slots`` slots."""
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


class Books(NamedTuple):
    """Which pages the rows of a cache have.

    Attributes:
        owner: the cache, while it is there.
        pages, rooms: see ``PagedCache``; its own arrays.
    """

    owner: weakref.ref[object]
    pages: NDArray[np.int32]
    rooms: IntArray


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
        self._books: list[Books] = []

    @property
    def num_free(self) -> int:
        """Pages that no row uses; those of caches that are gone come back first, each once, wherever Ctrl-C comes."""
        for place in reversed(range(len(self._books))):
            if self._books[place].owner() is None:
                self.give_back_all(*self._books[place][1:])
                del self._books[place]
        return int(np.count_nonzero(self.uses == 0))

    def count_unused(self, pages: IntArray) -> int:
        """Return how many of some pages ``[K]`` no row uses."""
        return int(np.count_nonzero(self.uses[pages] == 0))

    def take(self, count: int) -> IntArray:
        """Return pages that nobody uses, side by side if possible; whoever books them counts their uses.

        Returns:
            ``[count]`` int64, ascending.

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

    def watch(self, cache: object, pages: NDArray[np.int32], rooms: IntArray) -> None:
        """Have the pages of a cache that is gone come back with the next count of free ones; see ``Books``.

        No finalizer gives them back: Ctrl-C in one would end it half-way, and Python does not call it again.

        Args:
            cache: whose books they are; it is held weakly.
            pages: ``[num_rows, P]`` int32, the cache's own array.
            rooms: ``[num_rows]``, likewise.
        """
        self._books.append(Books(weakref.ref(cache), pages, rooms))

    def give_back(self, pages: NDArray[np.int32], rooms: IntArray, row: int, num_dirty: int | None = None) -> None:
        """Give the pages of a row back.

        Args:
            pages, rooms: ``[num_rows, P]`` and ``[num_rows]``, those of a ``PagedCache``; the row's room becomes 0.
            row: of that cache.
            num_dirty: how many of its pages, from the first on, may hold something; None: all.
        """
        own = pages[row, : rooms[row] // PAGE].astype(np.int64)
        self.is_dirty[own[:num_dirty]] = True
        # Nothing is called from here on, see ``uses``.
        rooms[row] = 0
        self.uses[own] -= 1

    def give_back_all(self, pages: NDArray[np.int32], rooms: IntArray) -> None:
        """Give the pages of all rows back that have some: again, if Ctrl-C came the first time.

        Args:
            pages, rooms: see ``give_back``.
        """
        for row in np.flatnonzero(rooms).tolist():
            self.give_back(pages, rooms, row)

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
