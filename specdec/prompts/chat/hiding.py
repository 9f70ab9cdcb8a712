"""What messages say, hidden from a template as far as control tokens could be read in it."""

import re
from collections.abc import Callable, Iterator, Mapping

from specdec.prompts.chat.control import ControlTokens, alternatives
from specdec.prompts.chat.messages import ASSISTANT, Message, map_strings, strings_of

Change = Callable[[str], str]


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
        self._edges = tuple(sorted({text[at] for text in self._all for at in (0, -1)}))
        self.num_characters = len(self._all) + len(self._edges)
        others = [text for text in control.ids if text not in control.special]
        self._find_all, self._find_special = control.pattern, alternatives(self._special)
        self._find_edges, self._find_own_edges = alternatives(self._edges), alternatives((*self._edges, *others))

    def ways(self, messages: list[Message], private: str) -> tuple[dict[int, str], Iterator[list[Message]]]:
        """Return messages with less and less hidden: ends of control tokens, the same but in answers, whole tokens.

        Args:
            messages: checked.
            private: characters that the messages lack, ``num_characters`` of them or more.

        Returns:
            What the code of each private character stands for, and the messages with these in its place.
        """
        by_text = dict(zip((*self._edges, *self._all), private, strict=False))
        of_edges, of_special = ({text: by_text[text] for text in part} for part in (self._edges, self._special))
        edges, own_edges = _changer(self._find_edges, by_text), _changer(self._find_own_edges, of_edges)
        tokens, own_tokens = _changer(self._find_all, by_text), _changer(self._find_all, of_special)
        ways = ((edges, own_edges), (edges, own_tokens), (tokens, own_tokens))
        hidden = ([_change_message(message, *way) for message in messages] for way in ways)
        return {ord(character): text for text, character in by_text.items()}, hidden

    def first_in(self, messages: list[Message]) -> tuple[int, str]:
        """Return the number of the first message in which a whole token would be hidden, and the token."""
        return next(
            (number, found[0])
            for number, message in enumerate(messages)
            for text in strings_of({**message, "role": ""})
            if (found := (self._find_special if message["role"] == ASSISTANT else self._find_all).search(text))
        )


def _changer(found: re.Pattern[str], by_text: Mapping[str, str]) -> Change:
    """Return what replaces the texts that have a private character, and leaves the others that are looked for."""
    return lambda text: found.sub(lambda match: by_text.get(match[0], match[0]), text)


def _change_message(message: Message, others: Change, assistants: Change) -> Message:
    role = message["role"]
    return {**map_strings(message, assistants if role == ASSISTANT else others), "role": role}
