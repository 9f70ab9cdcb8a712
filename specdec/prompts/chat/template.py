"""A chat template for a tokenizer: from a conversation to ids."""

import copy
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from tokenizers import Tokenizer

from specdec.prompts.chat.control import ControlTokens, absent_characters, ids_of
from specdec.prompts.chat.hiding import Hiding
from specdec.prompts.chat.messages import (
    ASSISTANT,
    Message,
    check_messages,
    holds_ids,
    keys_of,
    map_strings,
    strings_of,
    with_system,
)
from specdec.prompts.chat.rendering import Renderer

Render = Callable[[Sequence[Message]], str]


class ChatTemplate:
    """Turn conversations into a prompt's ids, as the checkpoint's own template writes them.

    Args:
        source: the template, in Jinja.
        tokenizer: of the oracle.
        bos_token, eos_token: their texts, which templates write by name; None: there is none.
        name: where the source comes from; summaries have it.
        stop_strings: an answer ends before one of them too.
        arguments: of the template, if ``encode`` gives no others.

    Attributes:
        source, name, stop_strings, arguments: see above.
        end_ids: the control token that the template writes after an answer; empty if it writes none, or refuses a
            conversation of one question and one answer.

    Raises:
        ValueError: the source is not Jinja.

    Guarantee: a control token that stands in a message's text is text there, and no text becomes one (but through a
        template that takes users' texts apart at the characters that control tokens begin or end with). In an
        assistant's own text only special tokens are text: what the model thought in ``<think>`` is read as the model
        wrote it. Ids are those of ``transformers``' ``apply_chat_template``, with the same ``tokenizer.json``, for
        every conversation whose messages hold no control token's text.
    Deviations: ``transformers`` 5 makes a tokenizer of the class ``LlamaTokenizer`` anew, and unless ``legacy`` is true
        its ids of a text after a control token are others than the file's.
    Cost: a rendering, and up to five if a text holds a character that control tokens begin or end with.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        bos_token: str | None = None,
        eos_token: str | None = None,
        *,
        name: str = "own",
        stop_strings: tuple[str, ...] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.source, self.name, self.stop_strings, self.arguments = source, name, stop_strings, dict(arguments or {})
        self._renderer, self._control = Renderer(source), ControlTokens(tokenizer, source)
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._tokens = {key: text for key, text in tokens.items() if text is not None}
        self._hiding = Hiding(self._control)
        self.end_ids = self._find_end()

    def __reduce__(self) -> tuple[Any, ...]:
        tokens = (self._tokens.get("bos_token"), self._tokens.get("eos_token"))
        more: dict[str, Any] = {"name": self.name, "stop_strings": self.stop_strings, "arguments": self.arguments}
        return partial(type(self), **more), (self.source, self._control.tokenizer, *tokens)

    def bind(self, **arguments: Any) -> "ChatTemplate":
        """Return this template with more arguments of its own, such as ``enable_thinking=False``."""
        bound = copy.copy(self)
        bound.arguments = {**self.arguments, **arguments}
        bound.end_ids = bound._find_end()
        return bound

    @property
    def sha256(self) -> str:
        """Of the source and the tokens that it writes by name, in hexadecimal digits."""
        return hashlib.sha256(repr((self.source, sorted(self._tokens.items()))).encode()).hexdigest()

    def render(
        self, messages: Any, system: str | None = None, add_generation_prompt: bool = True, **arguments: Any
    ) -> str:
        """Return a conversation as text, as ``encode`` reads it; arguments as there.

        Raises:
            ValueError: as there, and for a content that is ids, which are no text.
        """
        conversation = self._check(messages, system)
        if any(holds_ids(message.get("content")) for message in conversation):
            raise ValueError("a message's content is ids, which are no text: use encode")
        return self._render(add_generation_prompt, arguments)(conversation)

    def encode(
        self, messages: Any, system: str | None = None, add_generation_prompt: bool = True, **arguments: Any
    ) -> list[int]:
        """Return the ids of a conversation.

        Args:
            messages: ``{"role": ..., "content": ...}`` each. A content is a string, a list of parts that the template
                knows, or an answer's ids, which stay as they are (a control token at their end is left out: the
                template writes its own). Other keys are the template's.
            system: the system message, unless the messages begin with their own.
            add_generation_prompt: end where the assistant begins.
            arguments: of the template, such as ``enable_thinking=False`` or ``tools``. Like roles, they are the
                program's own words: control tokens in them are not escaped.

        Raises:
            ValueError: a message is unusable (named, with the fix), or the template refuses the conversation.
        """
        conversation, render = self._check(messages, system), self._render(add_generation_prompt, arguments)
        count, num_markers = len(conversation), len(self._control) + 1
        given = [*conversation, {**self.arguments, **arguments}]
        used = (self.source, *strings_of(given), *keys_of(given))
        private = absent_characters(num_markers + count + 2 * self._hiding.num_characters, *used)
        markers, places = private[:num_markers], private[num_markers : num_markers + count]
        before = len(conversation) - len(messages)  # a system message
        answers, conversation = self._without_answers(conversation, places)
        plain, marked = self._with_markers(conversation, render, private[num_markers + count :], markers, before)
        if not answers and marked == self._control.mark(plain, markers):
            return ids_of(self._control.tokenizer, plain)
        order = [answers[character] for character in marked if character in answers]
        marked = marked.translate(dict.fromkeys(map(ord, answers), markers[-1]))
        return self._control.encode_marked(marked, markers, order)

    def _check(self, messages: Any, system: str | None) -> list[Message]:
        conversation = check_messages(messages)
        for number, message in enumerate(conversation):
            for place, text in (("its role", message["role"]), *(("a key", key) for key in keys_of(message))):
                if found := self._control.pattern.search(text):
                    raise ValueError(f"message {number} has the control token {found[0]!r} in {place}; take it out")
        return with_system(conversation, system)

    def _render(self, add_generation_prompt: bool, arguments: Mapping[str, Any]) -> Render:
        """Return what renders messages, always at the time of this call."""
        own: dict[str, Any] = {"tools": None, "documents": None, "strftime_now": datetime.now().strftime}
        own["add_generation_prompt"] = add_generation_prompt
        return partial(self._renderer.render, variables={**self._tokens, **own, **self.arguments, **arguments})

    def _without_answers(self, messages: list[Message], places: str) -> tuple[dict[str, list[int]], list[Message]]:
        """Return the answers that are ids, by the character that stands for each, and messages with these."""
        answers: dict[str, list[int]] = {}
        told: list[Message] = []
        for message, place in zip(messages, places, strict=True):
            ids: Any = message.get("content")
            if holds_ids(ids):
                answers[place] = ids[:-1] if ids and self._ends_turn(ids[-1]) else ids
                message = {**message, "content": place}
            told.append(message)
        return answers, told

    def _ends_turn(self, one: int) -> bool:
        """Tell whether an id ends an answer, so that the template writes it anew; ``</think>`` is part of an answer."""
        return one in self.end_ids or one in map(self._control.ids.get, self._control.special)

    def _with_markers(
        self, messages: list[Message], render: Render, private: str, markers: str, before: int
    ) -> tuple[str, str]:
        """Return the conversation as text, and that with a marker for each control token that the template wrote.

        ``before`` of the messages are a system message that was given by itself.

        A character that control tokens begin or end with is hidden in what the messages say: what is found then was
        written by the template. A template that takes texts apart at such characters shows it by another text; then
        less is hidden, whole control tokens at the least, and it takes them for nothing but text.

        Raises:
            ValueError: the template spells out what is hidden, as an escape would; with the message and its token.
        """
        plain = render(messages)
        back, ways = self._hiding.ways(messages, private)
        for hidden in ways:
            text = plain if hidden == messages else render(hidden)
            marked = self._control.mark(text, markers).translate(back)
            if text.translate(back) == plain:
                return plain, marked
        others = dict(zip(back, reversed(private), strict=False))
        if render(map_strings(hidden, lambda text: text.translate(others))) != text.translate(others):
            number, token = self._hiding.first_in(messages)
            place = f"message {number - before} (of {messages[number]['role']!r})" if number >= before else "system"
            raise ValueError(
                f"{place} holds the control token {token!r}, and the chat template spells out characters, so that the "
                "token cannot be told from the template's own; take it out, or give a template that writes texts "
                "as they are"
            )
        return plain, marked

    def _find_end(self) -> tuple[int, ...]:
        answer = absent_characters(1, self.source)
        asked = [{"role": "user", "content": "?"}, {"role": ASSISTANT, "content": answer}]
        try:
            text = self._render(False, {})(asked)
        except ValueError:
            return ()
        written = re.match(rf"\s*{self._control.pattern.pattern}", text.partition(answer)[2])
        return (self._control.ids[written[1]],) if written else ()
