"""A watched source: it declares what the source does, and the calls of its sessions can be seen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec.contracts.arrays import IntArray
from specdec.contracts.draft import Budget, Draft
from specdec.contracts.drawing import Randomness
from specdec.contracts.oracle import Oracle, Scores
from specdec.contracts.oracle_kinds import DraftPrefixes
from specdec.contracts.source import Context, DraftSession, DraftSource, Needs, Offers, close_session, share_prefixes


@dataclass
class WatchedSession(DraftSession):
    """A session that forwards every call; a watcher overrides the methods that it wants to see.

    Args:
        inner: the session that calls are forwarded to.
    """

    inner: DraftSession

    def share(self, prefixes: DraftPrefixes) -> None:
        """Forward to the inner session; see ``DraftSession.share``."""
        share_prefixes(self.inner, prefixes)

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """Forward to the inner session; see ``DraftSession.begin``."""
        self.inner.begin(rows, prompts, scores)

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """Forward to the inner session; see ``DraftSession.propose``."""
        return self.inner.propose(rows, context, budget, randomness)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        """Forward to the inner session; see ``DraftSession.sync``."""
        self.inner.sync(rows, keep, new_ids, scores)

    def end(self, rows: IntArray) -> None:
        """Forward to the inner session; see ``DraftSession.end``."""
        self.inner.end(rows)

    def close(self) -> None:
        """Forward to the inner session; see ``DraftSession.close``."""
        close_session(self.inner)


@dataclass(frozen=True)
class WatchedSource(DraftSource):
    """A source whose sessions are watched; otherwise it is the source.

    Args:
        inner: the source.
        watch: returns the session to use, given one of the source, the oracle and the number of rows.
    """

    inner: DraftSource
    watch: Callable[[DraftSession, Oracle, int], DraftSession]

    @property
    def name(self) -> str:
        """Its name in records and messages."""
        return self.inner.name

    @property
    def needs(self) -> Needs:
        """What it asks of the engine."""
        return self.inner.needs

    @property
    def offers(self) -> Offers:
        """What it declares."""
        return self.inner.offers

    @property
    def vocab_size(self) -> int | None:
        """The vocabulary drafted from; see ``DraftSource.vocab_size``."""
        return self.inner.vocab_size

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        """Return the session that ``watch`` makes of one of the source; arguments as in ``DraftSource.open``."""
        return self.watch(self.inner.open(oracle, num_rows, capacity), oracle, num_rows)


class _FrozenSession(WatchedSession):
    def close(self) -> None:
        """Leave nothing to later runs."""


def frozen(source: DraftSource) -> DraftSource:
    """Return a source whose runs leave nothing to later ones: equal runs have equal results, whatever it remembers."""
    return WatchedSource(source, lambda session, oracle, num_rows: _FrozenSession(session))
