"""Turn a function from ids to ids into a draft source."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import overload

import numpy as np

from specdec.contracts import Context, Draft, IntArray, Needs, Offers, Oracle, Randomness
from specdec.drafting import MemorylessSession, list_chains
from specdec.drafting.lengths import Fixed, LengthSession, chain_offers, open_length

Propose = Callable[[list[int], int], Sequence[int]]


class StatelessSource:
    """A source that drafts what a function says; made by ``stateless``."""

    needs = Needs()
    vocab_size = None

    def __init__(self, function: Propose, num_draft_tokens: int) -> None:
        self.function = function
        # A callable object or a partial has no name of its own: its type's must do.
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.length = Fixed(num_draft_tokens)
        self.__doc__ = function.__doc__

    @property
    def offers(self) -> Offers:
        """What it declares."""
        return chain_offers(self.length)

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> "_Session":
        """Return a session for a run; arguments as in ``DraftSource.open``."""
        return _Session(self, open_length(self.length, num_rows), oracle)


@overload
def stateless(function: Propose) -> StatelessSource: ...
@overload
def stateless(*, num_draft_tokens: int) -> Callable[[Propose], StatelessSource]: ...
def stateless(
    function: Propose | None = None, *, num_draft_tokens: int = 8
) -> StatelessSource | Callable[[Propose], StatelessSource]:
    """Turn ``(ids of one row, budget) -> ids`` into a draft source; a decorator, with or without arguments.

    The function gets the prompt and output of a row, the pending token last, and how many tokens it may draft (1 or
    more); it returns at most that many, or none. The source is named after it::

        @stateless(num_draft_tokens=4)
        def repeat_last(ids: list[int], budget: int) -> list[int]:
            return ids[-1:] * budget

    Args:
        function: to be decorated.
        num_draft_tokens: the largest budget.

    Raises:
        ValueError: something that is not a function, a negative budget; in use, an answer that is not a list of ids, is
            longer than its budget or is outside the oracle's vocabulary.

    Guarantee: drafts are point masses, so they are lossless under every lossless rule, provided that the answer depends
        only on the arguments; reproducible under the same condition.
    Cost: one call a row and step, and a list of the row's ids for it: O(L) a row of Python's time.
    """
    if function is None:
        return partial(StatelessSource, num_draft_tokens=num_draft_tokens)
    if not callable(function):
        raise ValueError(
            f"stateless was given {function!r} for a function: write @stateless(num_draft_tokens=4) to give a length"
        )
    return StatelessSource(function, num_draft_tokens)


class _Session(MemorylessSession):
    def __init__(self, source: StatelessSource, length: LengthSession, oracle: Oracle) -> None:
        super().__init__(length)
        self.source, self.vocab_size = source, oracle.vocab_size

    def draft(self, rows: IntArray, context: Context, limits: IntArray, randomness: Randomness) -> Draft:
        chains = [
            self._check_answer(self.source.function(ids[:length].tolist(), budget) if budget else (), budget)
            for ids, length, budget in zip(context.ids, context.num_committed, limits.tolist(), strict=True)
        ]
        return list_chains(chains)

    def _check_answer(self, answer: Sequence[int], budget: int) -> IntArray:
        """Return the ids of an answer ``[N]``, or raise ValueError if it cannot be a chain."""
        name = f"draft {self.source.name!r}"
        try:
            chain = np.asarray(answer)
        except ValueError:  # nested lists of different lengths
            chain = np.empty((0, 0))
        if chain.ndim != 1 or (chain.size and not np.issubdtype(chain.dtype, np.integer)):
            raise ValueError(f"{name} returned {answer!r}; return a list of ids, [] to draft nothing")
        if len(chain) > budget:
            raise ValueError(f"{name} returned {len(chain)} ids for a budget of {budget}: return at most so many")
        if chain.size and not 0 <= chain.min() <= chain.max() < self.vocab_size:
            raise ValueError(f"{name} returned an id outside 0..{self.vocab_size - 1}: {answer}")
        return chain
