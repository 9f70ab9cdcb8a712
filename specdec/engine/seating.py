"""Rows of a cache for requests: empty ones, or ones that already hold the known beginning of a prompt."""

from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import Any, TypeVar, cast

import numpy as np

from specdec.cache import PAGE, ModelPrefixes, PagedCache, PrefixMemory, count_pages
from specdec.contracts import DraftSession, DraftSource, IntArray, Oracle, PrefixOracle, capability_of, share_prefixes
from specdec.requests import Request
from specdec.theory import check_count

T = TypeVar("T")
INSIDE = "thread"


class Turn(dict[str, int]):
    """A lock that says which thread holds it: {INSIDE: the thread}, or empty if none does. Copies are empty."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Turn, ()


def enter(turn: Turn) -> None:
    """Let this thread in; one that is inside already stays.

    Raises:
        RuntimeError: another thread is inside.
    """
    if turn.setdefault(INSIDE, get_ident()) != get_ident():  # one call: no other thread comes in between
        raise RuntimeError(
            "another thread is in the middle of a step of this run, or of one that shares its memory of prompts "
            "(prefix_sharing=True): give each thread a decoder of its own, or hold a lock around each call of "
            "generate, stream, start, step and cancel, and around each event of a stream"
        )


def leave(turn: Turn) -> None:
    """Let others in, if this thread is inside."""
    if turn.get(INSIDE) == get_ident():
        turn.clear()


def alone(turn: Turn, act: Callable[[], T]) -> T:
    """Return what ``act`` returns, and keep other threads out meanwhile, wherever Ctrl-C comes.

    Raises:
        RuntimeError: another thread is inside.
    """
    try:
        enter(turn)
        found = act()
        leave(turn)
    except BaseException:
        leave(turn)
        raise
    return found


class Seating:
    """How requests get rows of a run's cache: here each starts in an empty one, with slots for the longest of all.

    Args:
        cache: the run's.
        turn: the lock of threads that take steps, shared with the other runs that write to the same books; None: no
            other run does.

    Attributes:
        cache, turn: the same.
    """

    def __init__(self, cache: Any, turn: Turn | None = None) -> None:
        self.cache, self.turn = cache, Turn() if turn is None else turn

    @property
    def figures(self) -> dict[str, int]:
        """Its figures for the statistics, by name."""
        return {}

    def share(self, session: DraftSession) -> None:
        """Let the source's own models share prompts, if the oracle does."""

    def check_room(self, number: int, max_length: int) -> None:
        """Raise ValueError if the request of this number, of up to ``max_length`` ids, could never be seated."""

    def seat(self, row: int, request: Request) -> bool:
        """Give a request an idle row, or return that it has to wait."""
        self.cache.reset(np.array([row]))
        return True

    def note_prompts(self, rows: IntArray, prompts: Sequence[IntArray]) -> None:
        """Learn that the cache holds prompts, all but their last ids.

        Args:
            rows: ``[B]`` of the cache.
            prompts: ids ``[L]`` of each row.
        """

    def leave(self, row: int, ids: IntArray) -> None:
        """Learn that the request of a row has ended; its ids ``[L]`` stand, the pending one the last of them."""

    def give_up(self) -> None:
        """Learn that the run cannot go on, and free what other runs may use instead."""


class KnownPrefixes(Seating):
    """Requests start in rows that hold the known beginnings of their prompts; later requests know what they leave.

    A request waits while there are not enough pages for all that it may write. It also waits while a request that is
    seated with it is about to read a page that both begin with, so that the page is read once.

    Args:
        cache: the run's; its rows have no pages.
        turn: the lock of threads that write to the books of its memory.
        slack: slots that a request may write beyond its longest text.
        reads_prompts: the source reads scores of whole prompts, so that all of them are computed, and none is kept.
        of_drafts: what the source's own models know.
        max_bytes: the memory's bound, for messages.
    """

    def __init__(
        self,
        cache: PagedCache,
        turn: Turn,
        slack: int,
        reads_prompts: bool,
        of_drafts: ModelPrefixes,
        max_bytes: int | None,
    ) -> None:
        super().__init__(cache, turn)
        self._of_drafts, self._max_bytes = of_drafts, max_bytes
        self._pool, self._slack, self._reads_prompts = cache.memory.pool, slack, reads_prompts
        self._reused = self._evicted = self._most_pages = 0
        self._unread: list[IntArray] = []

    @property
    def figures(self) -> dict[str, int]:
        """Its figures for the statistics, by name: tokens and pages, see ``Stats``."""
        return {
            "num_prefix_tokens": self._reused,
            "num_draft_prefix_tokens": self._of_drafts.num_known,
            "most_pages": self._most_pages,
            "num_evicted_pages": self._evicted,
        }

    def share(self, session: DraftSession) -> None:
        """Let the source's own models share prompts; see ``Seating.share``."""
        alone(self.turn, partial(share_prefixes, session, self._of_drafts))

    def check_room(self, number: int, max_length: int) -> None:
        """Raise ValueError if a request needs more pages than there may be; see ``Seating.check_room``."""
        needed, most = count_pages(max_length + self._slack), self._pool.num_pages
        if needed > most:
            raise ValueError(
                f"request {number} may fill {needed} pages of {PAGE} slots, and max_cache_bytes = "
                f"{self._max_bytes:,} holds {most}: raise it, or lower max_new_tokens or the length of drafts"
            )

    def seat(self, row: int, request: Request) -> bool:
        """Give a request an idle row that begins with what is known of its prompt, or return that it has to wait."""
        prompt, num_slots = request.prompt, request.max_length + self._slack
        known = self._pool.find(prompt[:0] if self._reads_prompts else prompt[:-1])
        if not self._reads_prompts and any(_common_pages(prompt, other) > len(known) for other in self._unread):
            return False
        if count_pages(num_slots) - len(known) > self._pool.num_free - self._pool.count_unused(known):
            return False
        before = self._pool.num_evicted
        self.cache.seat(row, known, num_slots)
        self._evicted += self._pool.num_evicted - before
        self._most_pages = max(self._most_pages, self._pool.num_pages - self._pool.num_free)
        self._unread.append(prompt)
        self._reused += len(known) * PAGE
        return True

    def note_prompts(self, rows: IntArray, prompts: Sequence[IntArray]) -> None:
        """Let later requests find the full pages of these prompts; see ``Seating.note_prompts``."""
        self._unread.clear()
        if not self._reads_prompts:
            for row, prompt in zip(rows.tolist(), prompts, strict=True):
                self.cache.keep(row, prompt[:-1])

    def leave(self, row: int, ids: IntArray) -> None:
        """Let later requests find the full pages of a row, and give its pages back; see ``Seating.leave``."""
        if not self._reads_prompts:
            self.cache.keep(row, ids[:-1])
        self.cache.vacate(np.array([row]))

    def give_up(self) -> None:
        """Give the pages of all rows back; see ``Seating.give_up``."""
        self.cache.give_up()


def _common_pages(one: IntArray, other: IntArray) -> int:
    """Return how many full pages two prompts, without their last ids, have in common at their beginning."""
    size = min(len(one), len(other)) - 1
    differs = np.flatnonzero(one[:size] != other[:size])
    return int(differs[0] if differs.size else size) // PAGE


class PrefixSharing:
    """Keep an oracle's memory of pages from one run to the next.

    Args:
        oracle: whose.
        max_bytes: bound on the memory; None: twice as many pages as a run's rows can fill, within half of what is free.

    Raises:
        ValueError: the oracle's rows are not tables of pages.
    """

    def __init__(self, oracle: Oracle, max_bytes: int | None) -> None:
        if capability_of(oracle, "prefix_key") is None:
            raise ValueError(
                "prefix_sharing=True needs rows that are tables of pages, and passes of backend "
                f"{oracle.backend!r} read rows that lie in one piece: load the oracle with backend='native' or "
                "'eager', or leave it False"
            )
        self._memory, self._max_bytes = PrefixMemory(cast(PrefixOracle, oracle), max_bytes), max_bytes
        self._drafts, self._turn = ModelPrefixes(), Turn()

    def open(self, num_rows: int, capacity: int, slack: int, source: DraftSource) -> Seating:
        """Return how the requests of a run are seated.

        Args:
            num_rows, capacity: rows, and slots of each.
            slack: slots that a request may write beyond its longest text.
            source: that drafts.

        Raises:
            RuntimeError: another thread is in the middle of a step of a run that shares the memory.
        """
        return alone(self._turn, partial(self._open, num_rows, capacity, slack, source.needs.reads_prompts))

    def _open(self, num_rows: int, capacity: int, slack: int, reads_prompts: bool) -> Seating:
        cache = self._memory.open(num_rows, capacity)
        return KnownPrefixes(cache, self._turn, slack, reads_prompts, self._drafts.open(), self._max_bytes)


def check_sharing(max_bytes: int | None, prefix_sharing: bool) -> None:
    """Raise ValueError if ``max_cache_bytes`` or ``prefix_sharing`` of a decoder has another type."""
    if not isinstance(prefix_sharing, bool):
        raise ValueError(f"prefix_sharing={prefix_sharing!r} must be True or False")
    if max_bytes is not None:
        check_count("max_cache_bytes", max_bytes)
