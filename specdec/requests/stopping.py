"""Where an output ends: EOS, stop ids, stop strings, a finished grammar, what comes first; and text safe to show."""

import re
from collections.abc import Sequence
from functools import reduce
from typing import Any, Literal

import numpy as np

from specdec.contracts import BoolArray, IntArray
from specdec.requests.requests import Request

FinishReason = Literal["eos", "stop", "length", "cancelled"]
UNFINISHED = "\ufffd"
_WINDOW = 64  # ids that are always decoded anew: those before them may be left out
_BYTE = re.compile("<0x[0-9A-F]{2}>")


def first_eos(block: IntArray, counts: IntArray, eos_ids: Sequence[int], ignore: BoolArray) -> IntArray | None:
    """Return ``[B]`` the index of the first EOS in each block ``[B, W]`` of ``counts[b]`` tokens, W if none.

    None if there is none in any block, which is quick to tell.
    """
    width, found = block.shape[1], [block == eos for eos in eos_ids]
    if not any(map(np.count_nonzero, found)):
        return None
    hit = reduce(np.logical_or, found) & (np.arange(width) < counts[:, None]) & ~ignore[:, None]
    first: IntArray = np.where(hit.any(1), hit.argmax(1), width)
    return first


def first_stop(request: Request, tokenizer: Any, output: Sequence[int], num_new: int) -> int:
    """Return the index, among the last ``num_new`` ids of ``output``, of the token that completes a stop.

    Args:
        request: whose stops are looked for; a finished grammar is one.
        tokenizer: decodes ids; needed for stop strings only.
        output: the request's new ids so far, the new block included. A stop inside the prompt does not count.
        num_new: length of the new block.

    Returns:
        The index within the block, or ``num_new`` if no stop is completed.

    Raises:
        ValueError: the grammar leaves no id at a position, or ends before ``min_new_tokens``.

    Guarantee: a stop string is complete at the first token up to which the decoded output holds it (an unfinished
        character reads as U+FFFD there); so the answer for a token depends on the ids up to it, never on where blocks
        begin.
    Cost: for stop strings two decodings of a window of the output per new token; the window holds whole runs of bytes.
    """
    first = len(output) - num_new
    for end in range(first + 1, len(output) + 1):
        if any(len(s) <= end and tuple(output[end - len(s) : end]) == s for s in request.stop_ids):
            at = end - 1 - first
            break
    else:
        at = num_new
    if request.stop_strings:
        ends = range(first + 1, first + at + 1)
        at = next((e - first - 1 for e in ends if _ends_in(request.stop_strings, tokenizer, output[:e])), at)
    return at if request.grammar is None else min(at, _grammar_end(request, output[: first + at + 1], first))


def _grammar_end(request: Request, output: Sequence[int], first: int) -> int:
    """Return how many ids after the ``first`` stand before the one that finishes a request's grammar; all if none does.

    Raises:
        ValueError: see ``first_stop``.
    """
    grammar, least = request.grammar, request.sampling.min_new_tokens
    assert grammar is not None
    num_new = len(output) - first
    at = grammar.first_end(np.array(output, dtype=np.int64), num_new)
    if at < num_new and first + at + 1 < least:
        raise ValueError(
            f"{grammar.owner}: its {grammar.kind} ends after {first + at + 1} tokens, and min_new_tokens={least}: ask "
            "for fewer, or for a longer text"
        )
    return at


def _ends_in(strings: Sequence[str], tokenizer: Any, output: Sequence[int]) -> bool:
    """Tell whether the text of the last ids of ``output`` holds a stop string; an earlier one would have ended it."""
    # A token is at least one byte, unless it is special and reads as nothing: then the window grows.
    window = max(len(s.encode()) for s in strings) + 1
    longest = max(map(len, strings))
    settled = min(byte_run_start(tokenizer, output, len(output)), len(output) - 1)
    while True:
        begin = byte_run_start(tokenizer, output, max(len(output) - window, 0))
        before = tokenizer.decode(list(output[begin:settled])).rstrip(UNFINISHED)
        # If the window begins inside a character, its first text is not the output's.
        if begin == 0 or (len(before) >= longest and not before.startswith(UNFINISHED)):
            return any(s in tokenizer.decode(list(output[begin:])) for s in strings)
        window *= 2


def byte_run_start(tokenizer: Any, ids: Sequence[int], end: int) -> int:
    """Return where the run of byte tokens begins that reaches up to ``ids[end]``; ``end`` if there is none.

    Decoders with byte fallback read a run as a whole: one bad byte spoils all of it, and an id that decoding leaves out
    does not divide it.

    Cost: a look-up and at most two decodings of one id for each id of the run.
    """
    while end > 0 and _joins_bytes(tokenizer, ids[end - 1]):
        end -= 1
    return end


def _joins_bytes(tokenizer: Any, token: int) -> bool:
    """Tell whether a run of bytes goes on at a token: it is a byte, or decoding leaves it out (special or unknown)."""
    piece = tokenizer.id_to_token(token)
    if piece is None or _BYTE.fullmatch(piece):
        return True
    return not tokenizer.decode([token]) and bool(tokenizer.decode([token], skip_special_tokens=False))


def cut_text(tokenizer: Any, output: Sequence[int], strings: Sequence[str], reason: FinishReason) -> str:
    """Return the text of an output, without the EOS that ended it and cut before the first stop string."""
    text: str = tokenizer.decode(list(output[:-1] if reason == "eos" else output))
    return cut_at_stop(text, strings)


def cut_at_stop(text: str, strings: Sequence[str]) -> str:
    """Return ``text`` up to the first occurrence of any of the stop strings."""
    ends = [at for at in (text.find(s) for s in strings) if at >= 0]
    return text[: min(ends)] if ends else text


class TextHolder:
    """Turn growing ids into text pieces whose concatenation is the final text.

    Args:
        tokenizer: decodes ids; None: every piece is empty.
        stop_strings: a suffix that may still become one is held back.
    """

    def __init__(self, tokenizer: Any | None, stop_strings: Sequence[str]) -> None:
        self._tokenizer: Any = tokenizer
        self._stops = stop_strings
        # The first id that is still decoded, all text before it being shown; how much of the text from it on was shown.
        self._first = self._shown = 0

    def push(self, ids: Sequence[int], final: bool) -> str:
        """Return the text that has become certain.

        Args:
            ids: all new ids so far; on the last call without the EOS that ended them.
            final: no more ids follow: everything is shown, cut before a stop string.

        Cost: decodes some last ids up to three times, as a rule at most 128; more while their text is not certain.
        """
        if self._tokenizer is None:
            return ""
        own = list(ids[self._first :])
        whole: str = self._tokenizer.decode(own)
        text = cut_at_stop(whole, self._stops)
        certain = len(text) if final else self._certain(text[: self._before_bytes(own)])
        piece = text[self._shown : certain]
        self._shown = max(self._shown, certain)
        if len(own) > 2 * _WINDOW:
            self._forget(own, whole)
        return piece

    def _forget(self, own: Sequence[int], text: str) -> None:
        """Leave ids out from now on whose text was shown, if the others read without them as they do in ``text``."""
        start = len(own) - _WINDOW
        rest: str = self._tokenizer.decode(list(own[start:]))
        gone = len(text) - len(rest)
        # Some decoders drop a first blank: it is gone too. An unfinished character, or none, may still read otherwise.
        if rest and text.endswith(rest) and not rest.startswith(UNFINISHED) and 0 < gone <= self._shown:
            self._first, self._shown = self._first + start, self._shown - gone

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
