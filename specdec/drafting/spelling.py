"""One text in the ids of two tokenizers: pieces that agree byte for byte, and text that is read again."""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from specdec.contracts import IntArray, ids_before_text

_BYTE = re.compile("<0x([0-9A-F]{2})>")
# Sentencepiece's sign for a space.
_SPACE = "\u2581"
# Bytes after which text is not read again, if no word begins.
_LONGEST = 64
# How many texts have their ids kept.
_MOST_TEXTS = 1 << 16


def piece_bytes(tokenizer: Any, ids: Iterable[int]) -> list[bytes | None]:
    """Return the bytes that ids stand for by themselves; None for an id that the tokenizer does not have.

    Decoding an id alone does not tell: parts of characters come out as U+FFFD, and some decoders drop a first space.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``.
        ids: any.

    Cost: the tokenizer as JSON once, then a look-up for each id.
    """
    parts = json.loads(tokenizer.to_str())
    added = {entry["id"] for entry in parts["added_tokens"]}
    alphabet = _byte_alphabet() if "ByteLevel" in _kinds(parts["decoder"]) else None
    return [_bytes_of(tokenizer.id_to_token(one), None if one in added else alphabet) for one in ids]


def _kinds(decoder: dict[str, Any] | None) -> set[str]:
    """Return the kinds of a decoder's parts."""
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*(_kinds(part) for part in decoder.get("decoders", ())))


def _byte_alphabet() -> dict[str, int]:
    """Return character -> byte of GPT-2's alphabet: printable bytes stand for themselves, U+0100 on for the others."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _bytes_of(piece: str | None, alphabet: dict[str, int] | None) -> bytes | None:
    """Return what an entry of the vocabulary stands for."""
    if piece is None:
        return None
    if alphabet is not None and all(character in alphabet for character in piece):
        return bytes(alphabet[character] for character in piece)
    if byte := _BYTE.fullmatch(piece):
        return bytes([int(byte[1], 16)])
    return piece.replace(_SPACE, " ").encode()


class SharedPieces:
    """The pieces that a model's vocabulary and its target's have in common, and how the model spells the others.

    Pieces agree if their bytes do; control tokens agree only with control tokens. If pieces of one vocabulary are
    equal, the lowest id counts, except that all of the target's ids are read.

    Args:
        tokenizer: of the model, a ``tokenizers.Tokenizer``.
        vocab_size: of the model.
        target: the target's tokenizer.
        target_size: the target's vocabulary.

    Attributes:
        model_ids, target_ids: ``[K]`` the ids of the K common pieces.
        to_model: for each id of the target, the model's id of that piece; -1: it has none.
        beginning: the model's ids that its tokenizer puts before a text, such as its BOS.
        content: for each id of the target, its bytes; empty if it is no piece.
        control: ids of the target that stand for no text.

    Cost: both vocabularies are read once, about 0.1 s for 50,000 ids.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, target: Any, target_size: int) -> None:
        self.tokenizer = tokenizer
        own, theirs = piece_bytes(tokenizer, range(vocab_size)), piece_bytes(target, range(target_size))
        own_control, self.control = control_ids(tokenizer), control_ids(target)
        by_piece: dict[tuple[bool, bytes], int] = {}
        for one, piece in enumerate(own):
            if piece:
                by_piece.setdefault((one in own_control, piece), one)
        self.to_model = [by_piece.get((one in self.control, piece or b""), -1) for one, piece in enumerate(theirs)]
        first = {model: one for one, model in reversed(list(enumerate(self.to_model))) if model >= 0}
        self.target_ids: IntArray = np.array(sorted(first.values()), dtype=np.int64)
        self.model_ids: IntArray = np.array([self.to_model[one] for one in self.target_ids], dtype=np.int64)
        self.content = [piece or b"" for piece in theirs]
        self._own = [piece or b"" for piece in own]
        self.spell = lru_cache(_MOST_TEXTS)(self._spell)
        self.beginning = self._find_beginning()

    def _spell(self, content: bytes) -> tuple[int, ...] | None:
        """Return the model's ids of a text; None if it is no whole text, or if they do not spell it byte for byte."""
        try:
            ids = self.tokenizer.encode(content.decode(), add_special_tokens=False).ids
        except Exception:  # the library has no narrower one for text that a tokenizer cannot read
            return None
        if not all(one < len(self._own) for one in ids) or self.text_of(ids) != content:
            return None
        return tuple(ids)

    def _find_beginning(self) -> list[int]:
        """Return the model's ids that stand before every text; none if its vocabulary lacks one of them."""
        if (sample := self._sample) is None:
            return []
        encoded = self.tokenizer.encode(sample.decode())
        beginning = ids_before_text(encoded)
        return beginning if all(one < len(self._own) for one in beginning) else []

    def text_of(self, ids: Iterable[int]) -> bytes:
        """Return what ids of the model spell."""
        return b"".join(self._own[one] for one in ids)

    @property
    def _sample(self) -> bytes | None:
        """A piece of the target that the model can spell by itself; None: its tokenizer keeps none as it is.

        Some put a space before text that does not begin with white space: pieces that begin so tell nothing.
        """
        plain = (content for one, content in enumerate(self.content) if content and one not in self.control)
        return next((one for one in plain if not one[:1].isspace() and self.spell(one) is not None), None)

    @property
    def reads_text(self) -> bool:
        """Whether the model's tokenizer keeps text as it is: one that puts a space before it, say, does not."""
        return self._sample is not None


def control_ids(tokenizer: Any) -> set[int]:
    """Return the ids of a tokenizer that stand for no text."""
    return {one for one, token in tokenizer.get_added_tokens_decoder().items() if token.special}


class Spelling:
    """A row of the target's ids as a model reads them.

    The model's ids begin as its tokenizer begins a text (with its BOS, say), unless the target's begin with the
    same piece. An id whose piece the model has is the model's id of that piece. Any other one is read again as
    text, together with the ids before it since the last stable boundary: the place where the latest word begins
    (white space after other text), or a control token, or a character after 64 bytes without one. So what the model
    reads follows from the ids alone, however they come. Text that the model cannot spell, such as a part of a
    character whose rest is yet to come, is not read until it can, and left out for good once the next word begins.

    Args:
        pieces: of the two vocabularies.

    Attributes:
        ids: the target's.
        own: the model's.
        is_whole: whether the model's ids spell all of the target's.
        stable: how many of the model's ids, from the first on, are as they were when ``settle`` was last called.

    Cost: O(1) for an id that the model has; for another one the tokenizer reads a word, or a table tells what it read
        before.
    """

    def __init__(self, pieces: SharedPieces) -> None:
        self.pieces = pieces
        self._reset()

    def _reset(self) -> None:
        self.ids: list[int] = []
        self.own: list[int] = self.pieces.beginning.copy()
        self.is_whole, self.stable = True, 0
        self._boundary, self._open, self._is_after_control = len(self.own), b"", False

    def append(self, one: int) -> None:
        """Let an id of the target follow."""
        pieces, is_control = self.pieces, one in self.pieces.control
        if not self.ids and pieces.to_model[one] in pieces.beginning[:1]:
            self.own, self.stable, self._boundary = [], 0, 0
        content = pieces.content[one]
        if is_control or self._is_after_control or self._begins_word(content):
            self._boundary, self._open, self.is_whole = len(self.own), b"", True
        self._is_after_control = is_control
        self.ids.append(one)
        self._open += content
        if self.is_whole and pieces.to_model[one] >= 0:
            self.own.append(pieces.to_model[one])
            return
        spelled = pieces.spell(self._open)
        self.is_whole = spelled is not None
        if spelled is not None:
            self._read_again(spelled)

    def _begins_word(self, content: bytes) -> bool:
        """Tell whether the text before an id and the text from it on can each be read by itself."""
        begins_character = not content or content[0] & 0xC0 != 0x80  # in UTF-8; other bytes may never begin one
        is_long = len(self._open) >= (_LONGEST if begins_character else 2 * _LONGEST)
        return (content[:1].isspace() and not self._open[-1:].isspace()) or is_long

    def _read_again(self, spelled: Sequence[int]) -> None:
        """Let other ids follow the last stable boundary."""
        held, agreed = self.own[self._boundary :], 0
        while agreed < min(len(held), len(spelled)) and held[agreed] == spelled[agreed]:
            agreed += 1
        self.own[self._boundary + agreed :] = spelled[agreed:]
        self.stable = min(self.stable, self._boundary + agreed)

    def cut(self, size: int) -> None:
        """Leave the first ``size`` ids. Cost: if that takes any back, the others are read once more."""
        if size < len(self.ids):
            ids = self.ids[:size]
            self._reset()
            for one in ids:
                self.append(one)
            self.stable = 0

    def settle(self) -> list[int]:
        """Return the model's ids after the stable ones; from now on all are stable."""
        new, self.stable = self.own[self.stable :], len(self.own)
        return new
