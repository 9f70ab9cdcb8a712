"""The masks of one request: what may follow its output, as a function of the ids there."""

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import BoolArray, IntArray

if TYPE_CHECKING:
    from llguidance import LLMatcher

# Masks are kept for the nodes of a few steps, which drafts and verdicts both ask for: this many bytes a request.
_KEPT_BYTES = 2**23
_NOTHING = np.zeros(0, dtype=np.int64)


class _Place(NamedTuple):
    """What may follow some ids.

    Attributes:
        bits: a bit for each id, the lowest first; ends beyond the vocabulary included.
        is_over: whether nothing may follow but an end of the text.
        failure: what the library says if it has no mask; "": it has one.
    """

    bits: NDArray[np.uint8]
    is_over: bool
    failure: str = ""

    def goes_on_by(self, token: int) -> bool:
        """Tell whether an id may follow."""
        return not self.is_over and bool(self.bits[token >> 3] >> (token & 7) & 1)


class Grammar:
    """Tell which ids may follow the output of a request, whatever was drafted, verified or rejected in between.

    There is one matcher. Asked about ids, it goes back to the beginning that they share with those that it has read,
    and on from there; so no rejected draft leaves anything behind.

    Args:
        start: a matcher before its first id, which is only copied.
        vocab_size: V, the oracle's.
        end_ids: that end a text, the only ones that may follow a finished one; some may lie beyond V.
        owner: the request, for messages, and how its grammar was given.
        prompt_length: of the request, for messages.

    Raises:
        ValueError: no id may come first.

    Guarantee: the mask is the library's for these ids. If the grammar leaves only one text to go on with, the mask
        allows only its usual piece, not every spelling.
    Cost: a mask of the library (10 to 300 microseconds for 50,000 ids) for each node that was not asked for lately; the
        latest masks are kept, V / 8 bytes each, 8 MiB of them and of the ids before them.
    """

    def __init__(
        self, start: "LLMatcher", vocab_size: int, end_ids: Sequence[int], owner: tuple[str, str], prompt_length: int
    ) -> None:
        self._start, self._size, self._prompt_length = start, vocab_size, prompt_length
        self.owner, self.kind = owner
        self._is_end = np.zeros(max(vocab_size, *(one + 1 for one in end_ids)), dtype=np.bool_)
        self._is_end[list(end_ids)] = True
        self._ends = np.packbits(self._is_end, bitorder="little")
        self.forget()
        first = self._make_place(_NOTHING)
        if not (self._mask(first) & ~self._is_end).any():
            raise ValueError(
                f"{self.owner}: its {self.kind} allows no id of this vocabulary at the start: give one with a text "
                f"that is not empty, and that these ids can write{_describe_place(first)}"
            )

    def of_another(self, owner: str, prompt_length: int) -> "Grammar":
        """Return the same grammar for another request, which has read nothing yet."""
        other = copy(self)
        other.owner, other._prompt_length = owner, prompt_length
        other.forget()
        return other

    def forget(self) -> None:
        """Let go of all that was read and kept, as the request has ended; asked again, it begins anew."""
        self._matcher: LLMatcher | None = None
        self._read = _NOTHING
        self._places: dict[bytes, _Place | None] = {}
        self._num_bytes = 0

    def allowed_ids(self, output: IntArray, path: IntArray = _NOTHING) -> BoolArray | None:
        """Return ``[V]`` bool, which ids may come next.

        Args:
            output: ids that stand, ``[L]``, without the prompt.
            path: drafted ids after them.

        Returns:
            The mask, without any id if the vocabulary cannot go on. None: no text takes this path, because an id of it
            was not allowed, or the grammar was finished before it or by it.
        """
        place = self._place(output, path)
        return None if place is None or (path.size and place.is_over) else self._mask(place)[: self._size]

    def first_end(self, output: IntArray, num_new: int) -> int:
        """Return the index, among the last ids of an output, of the one that finishes the grammar.

        Args:
            output: ids that stand, ``[L]``, without the prompt.
            num_new: how many of them are new.

        Returns:
            That index, 0 for the first new id: after the id nothing may come but an end of the text, or the id is one.
                ``num_new`` if none does.

        Raises:
            ValueError: an id that the grammar does not allow, which a law gives only if it leaves no id at all.
        """
        first = len(output) - num_new
        for at in range(first, len(output)):
            # A source may have asked about the id as if it stood, so that there is a place after it in any case.
            before, place = self._place(output[:at]), self._place(output[: at + 1])
            if before is None or place is None or not before.goes_on_by(output[at]):
                raise ValueError(
                    f"{self.owner}: its {self.kind} leaves no id at position {self._prompt_length + at} that the "
                    f"vocabulary, the oracle, logit_bias and min_new_tokens allow{_describe_place(before)}"
                )
            if place.is_over:
                return at - first
        return num_new

    def _place(self, output: IntArray, path: IntArray = _NOTHING) -> _Place | None:
        """Return what may follow ids; None: nothing leads there. What stands is taken for granted."""
        ids = np.concatenate([output, path])
        key = ids.tobytes()
        if key not in self._places:
            before = self._place(output, path[:-1]) if path.size else None
            is_allowed = not path.size or (before is not None and before.goes_on_by(path[-1]))
            self._keep(key, self._make_place(ids) if is_allowed else None)
        return self._places[key]

    def _keep(self, key: bytes, place: _Place | None) -> None:
        """Keep what follows ids, and let go of the oldest beside it."""
        self._places[key] = place
        self._num_bytes += _bytes_of(key, place)
        while self._num_bytes > _KEPT_BYTES and len(self._places) > 1:
            oldest = next(iter(self._places))
            self._num_bytes -= _bytes_of(oldest, self._places.pop(oldest))

    def _mask(self, place: _Place) -> BoolArray:
        return np.unpackbits(place.bits, count=len(self._is_end), bitorder="little").view(np.bool_)

    def _make_place(self, ids: IntArray) -> _Place:
        if ids.size and self._is_end[ids[-1]]:
            return _Place(self._ends, True)
        matcher = self._go_to(ids)
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():  # no id of the vocabulary goes on
            return _Place(np.zeros_like(self._ends), False, matcher.get_error().partition("\n")[0])
        mask = np.unpackbits(bits, count=len(self._is_end), bitorder="little").view(np.bool_)
        goes_on = bool((mask & ~self._is_end).any())
        if not matcher.is_accepting():
            mask &= ~self._is_end
        return _Place(np.packbits(mask, bitorder="little"), not goes_on and bool(mask.any()))

    def _go_to(self, ids: IntArray) -> "LLMatcher":
        """Return the matcher after it has read ids; in its error state if it refuses one."""
        if self._matcher is None or self._matcher.is_error():
            self._matcher, self._read = self._start.deep_copy(), _NOTHING
        shorter = min(len(self._read), len(ids))
        differs = np.flatnonzero(self._read[:shorter] != ids[:shorter])
        common = int(differs[0]) if differs.size else shorter
        self._matcher.rollback(len(self._read) - common)
        self._matcher.consume_tokens(ids[common:].tolist())
        self._read = ids.copy()
        return self._matcher


def _bytes_of(key: bytes, place: _Place | None) -> int:
    return len(key) + (0 if place is None else place.bits.nbytes)


def _describe_place(place: _Place | None) -> str:
    """Return what the library says of a place, for the end of a message."""
    return f"; llguidance says: {place.failure}" if place is not None and place.failure else ""
