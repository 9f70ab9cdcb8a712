"""The masks of one request: what may follow its output, as a function of the ids there."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from specdec.contracts import BoolArray, IntArray

# Masks are kept for the nodes of a few steps, which drafts and verdicts both ask for: so many bytes a request.
_KEPT_BYTES = 2**23
_NOTHING = np.zeros(0, dtype=np.int64)


class Matcher(Protocol):
    """What is used of ``llguidance.LLMatcher``."""

    def deep_copy(self) -> "Matcher":
        """Return one in the same state."""

    def consume_tokens(self, sampled_tokens: list[int]) -> bool:
        """Go on by ids; False: it cannot, and is of no use from then on."""

    def rollback(self, num_tokens: int) -> bool:
        """Take the last ids back."""

    def compute_bitmask(self) -> bytes:
        """Return a bit for each id, the lowest first."""

    def is_accepting(self) -> bool:
        """Tell whether what was consumed is a whole text of the grammar."""

    def is_error(self) -> bool:
        """Tell whether it is of no use any more."""


class _Place(NamedTuple):
    """What may follow some ids.

    Attributes:
        mask: which ids, ends beyond the vocabulary included.
        is_over: whether these can be nothing but an end of the text.
    """

    mask: BoolArray
    is_over: bool


class Grammar:
    """Tell which ids may follow the output of a request, whatever was drafted, verified or rejected in between.

    There is one matcher. Asked about ids, it goes back to what they have in common with those that it has read, and on
    from there; so no rejected draft leaves anything behind.

    Args:
        start: a matcher before its first id.
        vocab_size: V, the oracle's.
        end_ids: that end a text, the only ones that may follow a finished one; some may lie beyond V.
        owner: the request, for messages, and how its grammar was given.
        prompt_length: of the request, for messages.

    Raises:
        ValueError: no id may come first.

    Guarantee: the mask is the library's for these ids. Where the grammar leaves a single text to go on with, it allows
        its usual piece only, not every spelling.
    Cost: a mask of the library (10 to 300 microseconds for 50,000 ids) for each node that was not asked for lately.
    """

    def __init__(
        self, start: Matcher, vocab_size: int, end_ids: Sequence[int], owner: tuple[str, str], prompt_length: int
    ) -> None:
        self._start, self._matcher, self._read = start, start.deep_copy(), _NOTHING
        self._size, self._prompt_length = vocab_size, prompt_length
        self.owner, self.kind = owner
        self._is_end = np.zeros(max(vocab_size, *(one + 1 for one in end_ids)), dtype=np.bool_)
        self._is_end[list(end_ids)] = True
        self._places: dict[bytes, _Place | None] = {}
        if not (self._make_place(_NOTHING).mask & ~self._is_end).any():
            raise ValueError(
                f"{self.owner}: its {self.kind} allows no id of this vocabulary at the start: give one with a text "
                "that is not empty, and that these ids can write"
            )

    def allowed(self, output: IntArray, path: IntArray = _NOTHING) -> BoolArray | None:
        """Return ``[V]`` bool, which ids may come next; nobody writes to it.

        Args:
            output: ids that stand, ``[L]``; the prompt is none of them.
            path: drafted ids after them.

        Returns:
            The mask, without any id if the vocabulary cannot go on. None: no text comes this way, because an id of the
            path was not allowed, or the grammar was finished before it or by it.
        """
        place = self._place(output, path)
        return None if place is None or (path.size and place.is_over) else place.mask[: self._size]

    def first_end(self, output: IntArray, num_new: int) -> int:
        """Return the index, among the last ``num_new`` ids of an output, of the one that finishes the grammar.

        Returns:
            That index: after the id nothing may come but an end of the text, or it is one. ``num_new`` if none does.

        Raises:
            ValueError: an id that the grammar does not allow, which a law gives only if it leaves no id at all.
        """
        first = len(output) - num_new
        for at in range(first, len(output)):
            place = self._place(output[:first], output[first : at + 1])
            if place is None:
                raise ValueError(
                    f"{self.owner}: its {self.kind} leaves no id at position {self._prompt_length + at} that the "
                    "vocabulary, the oracle, logit_bias and min_new_tokens allow"
                )
            if place.is_over:
                return at - first
        return num_new

    def _place(self, output: IntArray, path: IntArray) -> _Place | None:
        """Return what may follow ids; None: nothing leads there. What stands is taken for granted."""
        key = np.concatenate([output, path]).tobytes()
        if key not in self._places:
            before = self._place(output, path[:-1]) if path.size else None
            is_allowed = not path.size or (before is not None and not before.is_over and before.mask[path[-1]])
            made = self._make_place(np.concatenate([output, path])) if is_allowed else None
            if len(self._places) * len(self._is_end) > _KEPT_BYTES:
                del self._places[next(iter(self._places))]
            self._places[key] = made
        return self._places[key]

    def _make_place(self, ids: IntArray) -> _Place:
        size = len(self._is_end)
        if ids.size and self._is_end[ids[-1]]:
            return _Place(self._is_end, True)
        self._go_to(ids)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():  # no id of the vocabulary goes on
            return _Place(np.zeros(size, dtype=np.bool_), False)
        mask = np.unpackbits(bits, count=size, bitorder="little").view(np.bool_)
        goes_on = bool((mask & ~self._is_end).any())
        if not self._matcher.is_accepting():
            mask &= ~self._is_end
        return _Place(mask, not goes_on and bool(mask.any()))

    def _go_to(self, ids: IntArray) -> None:
        """Let the matcher stand after ids."""
        if self._matcher.is_error():
            self._matcher, self._read = self._start.deep_copy(), _NOTHING
        shorter = min(len(self._read), len(ids))
        differs = np.flatnonzero(self._read[:shorter] != ids[:shorter])
        common = int(differs[0]) if differs.size else shorter
        self._matcher.rollback(len(self._read) - common)
        self._matcher.consume_tokens(ids[common:].tolist())
        self._read = ids.copy()
