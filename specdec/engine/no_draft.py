"""The source of plain decoding."""

from specdec.contracts import Budget, Context, Draft, DraftSession, IntArray, Needs, Offers, Oracle, Randomness
from specdec.transfers import HOST


class NoDraft(DraftSession):
    """Draft nothing, so that plain decoding runs the same step: every pass emits one token. It is its own session."""

    name, needs, offers, vocab_size = "plain", Needs(), Offers(), None

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        """Return a session for a run; arguments as in ``DraftSource.open``."""
        return self

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """Draft nothing, ``[B, 0]``; see ``DraftSession.propose``."""
        return Draft.empty(len(rows), HOST)
