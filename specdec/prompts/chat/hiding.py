"""What messages say, hidden from a template as far as control tokens could be read in it."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from specdec.prompts.chat.control import ControlTokens, alternatives
from specdec.prompts.chat.messages import ASSISTANT, Message, map_strings, strings_of

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
        num_characters: private characters that hiding needs.
    """

    def __init__(self, control: ControlTokens) -> None:
        self._all, self._special = tuple(control.ids), tuple(text for text in control.ids if text in control.special)
        self._others = tuple(text for text in control.ids if text not in control.special)
        self._edges = tuple(sorted({text[at] for text in self._all for at in (0, -1)}))
        self.num_characters = len(self._all) + len(self._edges)

    def ways(self, messages: list[Message], private: str) -> Iterator[Hidden]:
        """Yield messages with less and less hidden: ends of control tokens, the same but in answers, whole tokens.

        Args:
            messages: checked.
            private: characters that the messages lack, ``num_characters`` of them or more.
        """
        by_text = dict(zip((*self._edges, *self._all), private, strict=False))
        back = {ord(character): text for text, character in by_text.items()}
        edges, tokens = _changer(self._edges, by_text), _changer(self._all, by_text)
        own_edges, own_tokens = (
            _changer((*part, *self._others), {text: by_text[text] for text in part})
            for part in (self._edges, self._special)
        )
        for others, assistants in ((edges, own_edges), (edges, own_tokens), (tokens, own_tokens)):
            yield Hidden([_change_message(message, others, assistants) for message in messages], back)

    def first_in(self, messages: list[Message]) -> tuple[int, str]:
        """Return the number of the first message in which a whole token would be hidden, and the token."""
        others, own = alternatives(self._all), alternatives(self._special)
        return next(
            (number, found[0])
            for number, message in enumerate(messages)
            for text in strings_of({**message, "role": ""})
            if (found := (own if message["role"] == ASSISTANT else others).search(text))
        )


def _changer(found: Iterable[str], by_text: dict[str, str]) -> Change:
    """Return what replaces the texts that have a private character, and leaves the others that are looked for."""
    pattern = alternatives(tuple(found))
    return lambda text: pattern.sub(lambda match: by_text.get(match[0], match[0]), text)


def _change_message(message: Message, others: Change, assistants: Change) -> Message:
    role = message["role"]
    return {**map_strings(message, assistants if role == ASSISTANT else others), "role": role}
