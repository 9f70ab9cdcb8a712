"""Control tokens: which they are, where a template wrote them, and ids of a text in which nothing else is one."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from tokenizers import AddedToken, Tokenizer

# Private use, planes 16 and 15: 131,068 characters that no text in the world needs.
_PRIVATE = (range(0x100000, 0x10FFFE), range(0xF0000, 0xFFFFE))


def absent_characters(count: int, *texts: str) -> str:
    """Return ``count`` characters for private use that none of the texts holds, as one string.

    Raises:
        ValueError: there are fewer.
    """
    used = {ord(character) for text in texts for character in text}
    found = "".join(map(chr, islice((code for code in chain(*_PRIVATE) if code not in used), count)))
    if len(found) < count:
        raise ValueError(
            f"a conversation takes {count:,} private characters, three for each control token, and {len(found):,} "
            "are free: give a tokenizer with fewer special tokens"
        )
    return found


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text, in which whatever reads as a control token is one."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


class ControlTokens:
    """A tokenizer's control tokens: its special ones, and others that a template writes.

    Args:
        tokenizer: is read, and never changed.
        source: of the template. A token that was added to the vocabulary without being special is control if the
            source names it and it holds a sign (``<think>``), otherwise it is a word like any other.

    Attributes:
        ids: text -> id, of all control tokens.
        special: the texts of the special ones.
        pattern: finds them in a text.
        tokenizer: see above.
    """

    def __init__(self, tokenizer: Tokenizer, source: str) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        chosen = {i: token for i, token in added.items() if token.special or _is_written(token.content, source)}
        self.ids = {token.content: i for i, token in chosen.items()}
        self.special = frozenset(token.content for token in chosen.values() if token.special)
        self._tokens, self.pattern = tuple(chosen.values()), alternatives(self.ids)
        # A copy is large; other markers than the usual ones are rare.
        self._reader_of = lru_cache(maxsize=4)(self._reader)

    def __len__(self) -> int:
        return len(self._tokens)

    def mark(self, text: str, markers: str) -> str:
        """Return a text with each control token in it as one character: token i as ``markers[i]``."""
        by_text = dict(zip(self.ids, markers, strict=False))
        return self.pattern.sub(lambda found: by_text[found[0]], text)

    def encode_marked(self, text: str, markers: str, answers: Sequence[Sequence[int]] = ()) -> list[int]:
        """Return the ids of a text in which the marks alone are control tokens.

        Args:
            text: from ``mark``.
            markers: as given there, and one more, which stands for the answers: its n-th occurrence for the n-th of
                them.
            answers: ids.

        Raises:
            ValueError: the tokenizer makes a control token of plain text too.

        Cost: the first call copies the tokenizer, up to a second for a vocabulary of 150,000.
        """
        reader = self._reader_of(markers)
        known = {reader.token_to_id(mark): [i] for mark, i in zip(markers, self.ids.values(), strict=False)}
        slot, waiting, control = reader.token_to_id(markers[-1]), iter(answers), set(self.ids.values())
        made: list[int] = []
        for token in reader.encode(text, add_special_tokens=False).ids:
            if token in control:
                wrong = next(name for name, i in self.ids.items() if i == token)
                raise ValueError(f"the text holds {wrong!r}, which this tokenizer takes for control even in plain text")
            made += next(waiting) if token == slot else known.get(token, [token])
        return made

    def _reader(self, markers: str) -> Tokenizer:
        """Return a copy of the tokenizer that reads the markers as tokens, and the control tokens as plain text.

        A marker takes the white space that its token takes, and is read wherever it stands.
        """
        stored = json.loads(self.tokenizer.to_str())
        for token in stored["added_tokens"]:
            token["special"] = token["content"] in self.ids
        reader = Tokenizer.from_str(json.dumps(stored))
        reader.encode_special_tokens = True
        strips = [*((token.lstrip, token.rstrip) for token in self._tokens), (False, False)]
        reader.add_tokens(
            [
                AddedToken(mark, lstrip=left, rstrip=right, normalized=False)
                for mark, (left, right) in zip(markers, strips, strict=True)
            ]
        )
        return reader


def _is_written(token: str, source: str) -> bool:
    """Tell whether a template's source names a token that is more than a word or white space."""
    return token in source and any(not character.isalnum() and not character.isspace() for character in token)


def alternatives(texts: Mapping[str, Any] | Sequence[str] | frozenset[str]) -> re.Pattern[str]:
    """Return what finds the longest of the texts at each place, in a group of its own; nothing if there is none."""
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})" if longest_first else r"((?!))")
