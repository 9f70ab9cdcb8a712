"""The decoder's own cache, lent to a source for the length of a draft."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import Context, IntArray, Oracle, Scores, takes_host_ids
from specdec.laws import take
from specdec.transfers import HOST, on_device


class LentCache:
    """Draft on the decoder's own cache: rows grow by what is scored, and are handed back as they were.

    What stands has the oracle's keys, so nothing is prefilled and no row is ever behind: the pending token is the only
    one without keys.

    Args:
        name: the source, for the message.
        context: of the rows; the cache is its own.
        rows: ``[B]``.
        oracle: scores on the cache.

    Attributes:
        cache: the decoder's.
        rows: ``[B]``.
        start: ``[B]`` the lengths that they had.
        last: ``[B]`` the last id of each row.
        pending: ``[B, 1]`` the same, where the oracle takes it.

    Raises:
        ValueError: the context has no cache.

    Guarantee: what is written here lies in the slots of the pending token and of drafted tokens, in this order. A
        verify pass writes all of these slots before it reads them; one that goes on from a layer (``Draft.resume``)
        takes the keys below it as they are.
    """

    def __init__(self, name: str, context: Context, rows: IntArray, oracle: Oracle) -> None:
        if context.cache is None:
            raise ValueError(
                f"draft {name!r} was given no cache: it drafts on the decoder's own, so it cannot serve inside "
                "another source; hand it to the decoder"
            )
        self.cache, self.rows, self.start = context.cache, rows, context.cache.lengths[rows]
        self.last = context.ids[np.arange(len(rows)), context.num_committed - 1]
        self.pending = on_device(self.last, HOST if takes_host_ids(oracle) else oracle.device).unsqueeze(1)

    def latest(self, depth: int, tokens: Tensor) -> Tensor:
        """Return ``[B, 1]`` the token above the one at a depth, of drafts ``[B, N]``: the pending one at depth 0."""
        return tokens[:, depth - 1 : depth] if depth else self.pending

    def grow(self, score: Callable[..., Scores], tokens: Tensor, live: IntArray) -> Scores:
        """Score one token of each row that takes part, and keep its keys.

        Args:
            score: ``Oracle.score``, with what is wanted of it.
            tokens: ``[B, 1]``.
            live: ``[R]`` indices of the rows that take part.

        Returns:
            Their scores, of R rows.
        """
        rows, one = self.rows[live], np.ones_like(live)
        counts = torch.ones(len(one), dtype=torch.int64, device=tokens.device)
        scores = score(take(tokens, live), None, counts, self.cache, rows)
        self.cache.commit(rows, None, one)
        return scores

    def hand_back(self) -> None:
        """Give the cache the lengths that it had: drafted tokens do not stand yet, though their keys are written."""
        self.cache.truncate(self.rows, self.start)
