"""What messages say, hidden from a template as far as control tokens could be read in it."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from specdec.chat.control import ControlTokens, alternatives
from specdec.chat.messages import ASSISTANT, Message, map_strings

Change = Callable[[str], str]


class Hidden(NamedTuple):
    """Messages in which something is hidden.

    Attributes:
        messages: with private characters in its place.
        back: code of a private character -> what it stands for.
    """

    messages: list[Message]
    back: dict[int, str]


class Hiding:
    """Hide control tokens, or the characters at their ends, in all that messages say but their roles.

    In an assistant's own text control tokens that are not special stay as they are: templates take it apart at
    ``</think>``.

    Args:
        control: of the tokenizer.

    Attributes:
        num_characters: private characters that are enough for either way.
    """

    def __init__(self, control: ControlTokens) -> None:
        self._all, self._special = tuple(control.ids), tuple(text for text in control.ids if text in control.special)
        self._kept = tuple(text for text in control.ids if text not in control.special)
        self._edges = "".join(sorted({text[at] for text in self._all for at in (0, -1)}))
        self.num_characters = max(len(self._all), len(self._edges))

    def edges(self, messages: list[Message], private: str) -> Hidden:
        """Hide each character that a control token begins or ends with."""
        by_edge = dict(zip(self._edges, private, strict=False))
        others = _changer(self._edges, by_edge)
        assistants = _changer((*self._edges, *self._kept), by_edge)
        return _hidden(messages, by_edge, others, assistants)

    def tokens(self, messages: list[Message], private: str) -> Hidden:
        """Hide each control token as a whole."""
        by_text = dict(zip(self._all, private, strict=False))
        return _hidden(messages, by_text, _changer(self._all, by_text), _changer(self._special, by_text))


def _changer(found: Iterable[str], by_text: dict[str, str]) -> Change:
    """Return what replaces the texts that have a private character, and leaves the others that are looked for."""
    pattern = alternatives(tuple(found))
    return lambda text: pattern.sub(lambda match: by_text.get(match[0], match[0]), text)


def _hidden(messages: list[Message], by_text: dict[str, str], others: Change, assistants: Change) -> Hidden:
    told = [
        {**map_strings(message, assistants if message["role"] == ASSISTANT else others), "role": message["role"]}
        for message in messages
    ]
    return Hidden(told, {ord(character): text for text, character in by_text.items()})
