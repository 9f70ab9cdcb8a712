"""Text that is safe to show while more is coming."""

from collections.abc import Sequence
from typing import Any

from specdec.requests.stopping import UNFINISHED, byte_run_start, cut_at_stop


class TextHolder:
    """Turn growing ids into text pieces whose concatenation is the final text.

    Args:
        tokenizer: decodes ids; None: every piece is empty.
        stop_strings: a suffix that may still become one is held back.
    """

    def __init__(self, tokenizer: Any | None, stop_strings: Sequence[str]) -> None:
        self._tokenizer: Any = tokenizer
        self._stops = stop_strings
        self._shown = 0

    def push(self, ids: Sequence[int], final: bool) -> str:
        """Return the text that has become certain.

        Args:
            ids: all new ids so far; on the last call without the EOS that ended them.
            final: no more ids follow: everything is shown, cut before a stop string.

        Cost: decodes the whole output, O(len(ids)).
        """
        if self._tokenizer is None:
            return ""
        text: str = cut_at_stop(self._tokenizer.decode(list(ids)), self._stops)
        certain = len(text) if final else self._certain(text[: self._before_bytes(ids)])
        piece = text[self._shown : certain]
        self._shown = max(self._shown, certain)
        return piece

    def _certain(self, text: str) -> int:
        """Return how much of ``text``, which no unfinished run of bytes follows, no later id can change or cut."""
        end = len(text.rstrip(UNFINISHED))
        held = max((_overlap(text[:end], stop) for stop in self._stops), default=0)
        return end - held

    def _before_bytes(self, ids: Sequence[int]) -> int:
        """Return the length of the text before the last run of byte tokens, which later ids may change."""
        return len(self._tokenizer.decode(list(ids[: byte_run_start(self._tokenizer, ids, len(ids))])))


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
