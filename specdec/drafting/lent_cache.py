"""The decoder's own cache, lent to a source for the length of a draft."""

from collections.abc import Callable
from typing import Self

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import Context, IntArray, Oracle, Scores, ids_device
from specdec.laws import take
from specdec.transfers import on_device


class LentCache:
    """Draft on the decoder's own cache, in a ``with`` block: rows grow by what is scored, and afterwards are as before.

    What stands has the oracle's keys, so nothing is prefilled and no row is ever behind: the pending token is the only
    one without keys.

    Args:
        name: the source, for the message.
        context: of the rows; it holds the cache.
        rows: ``[B]``.
        oracle: scores on the cache.

    Attributes:
        cache: the decoder's.
        rows: ``[B]``.
        start: ``[B]`` the lengths that they had.

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
        self._context, self._place = context, ids_device(oracle)

    def latest(self, depth: int, tokens: Tensor) -> Tensor:
        """Return ``[B, 1]`` the token above the one at a depth, of drafts ``[B, N]``: the pending one at depth 0."""
        if depth:
            return tokens[:, depth - 1 : depth]
        return on_device(self._context.pending, self._place).unsqueeze(1)

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Drafted tokens do not stand yet, though their keys are written.
        self.cache.truncate(self.rows, self.start)
