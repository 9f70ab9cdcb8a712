"""What each id of a tokenizer stands for by itself: text, or the bytes of a part of a character."""

from collections.abc import Iterable
from typing import Any

from specdec.drafting import piece_bytes

TokenText = str | list[int] | None


def token_texts(tokenizer: Any | None, ids: Iterable[int]) -> dict[int, TokenText]:
    """Return for each id its text; its bytes, if they are no UTF-8; None, if nothing is known of it.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``; None: nothing is known of any id.
        ids: each once or more often.

    Cost: see ``piece_bytes``.
    """
    if tokenizer is None:
        return dict.fromkeys(ids)
    distinct = list(set(ids))
    pieces = zip(distinct, piece_bytes(tokenizer, distinct), strict=True)
    return {one: None if content is None else _decode(content) for one, content in pieces}


def _decode(content: bytes) -> TokenText:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return list(content)
