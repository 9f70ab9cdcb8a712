"""What each id of a tokenizer stands for by itself: text, or the bytes of a part of a character."""

import json
import re
from collections.abc import Iterable
from typing import Any

_BYTE = re.compile("<0x([0-9A-F]{2})>")
# Sentencepiece's sign for a space.
_SPACE = "\u2581"

TokenText = str | list[int] | None


def token_texts(tokenizer: Any | None, ids: Iterable[int]) -> dict[int, TokenText]:
    """Return for each id its text; its bytes, if they are no UTF-8; None, if nothing is known of it.

    Decoding an id alone does not tell: parts of characters come out as U+FFFD, and some decoders drop a first space.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``; None: nothing is known of any id.
        ids: each once or more often.

    Cost: the tokenizer as JSON once, then a look-up for each id.
    """
    if tokenizer is None:
        return dict.fromkeys(ids)
    parts = json.loads(tokenizer.to_str())
    added = {entry["id"] for entry in parts["added_tokens"]}
    alphabet = _byte_alphabet() if "ByteLevel" in _kinds(parts["decoder"]) else None
    return {one: _text(tokenizer.id_to_token(one), None if one in added else alphabet) for one in set(ids)}


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


def _text(piece: str | None, alphabet: dict[str, int] | None) -> TokenText:
    """Return what an entry of the vocabulary stands for."""
    if piece is None:
        return None
    if alphabet is not None and all(character in alphabet for character in piece):
        return _decode(bytes(alphabet[character] for character in piece))
    if byte := _BYTE.fullmatch(piece):
        return _decode(bytes([int(byte[1], 16)]))
    return piece.replace(_SPACE, " ")


def _decode(content: bytes) -> TokenText:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return list(content)
