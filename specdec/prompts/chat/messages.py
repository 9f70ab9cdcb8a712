"""Messages of a conversation: checked, completed, and rewritten string by string."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from specdec.prompts.files import is_unicode

Message = dict[str, Any]
# The names that thinking goes by in a message; templates read the first one, some the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
ASSISTANT = "assistant"


def check_messages(messages: Any) -> list[Message]:
    """Return messages as plain data of their own.

    Raises:
        ValueError: they are not a list of messages with a role and a content; gives the message's number and the fix.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(f"a conversation is a list of messages, not {messages!r:.80}")
    return [_message(message, f"message {number}") for number, message in enumerate(messages)]


def _message(message: Any, name: str) -> Message:
    if not isinstance(message, Mapping):
        raise ValueError(f'{name} is {message!r:.80}; give {{"role": ..., "content": ...}}')
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise ValueError(f"{name} has the role {role!r}; give a string, such as 'user' or 'assistant'")
    if holds_ids(content) and role != ASSISTANT:
        raise ValueError(f"{name} has ids for content, and its role is {role!r}; only an assistant's may be ids")
    has_parts = isinstance(content, Sequence) and bool(content) and all(isinstance(part, Mapping) for part in content)
    says_more = content is None and bool(message.keys() - {"role", "content"})  # such as calls of tools
    if not (isinstance(content, str) or has_parts or holds_ids(content) or says_more):
        raise ValueError(f"{name} has the content {content!r:.80}; give a string")
    plain: Message = {_plain(key, name): _plain(value, f"{name}: {key!r}") for key, value in message.items()}
    thoughts = next((plain[key] for key in _REASONING if plain.get(key) is not None), None)
    return plain if thoughts is None else {"thinking": thoughts, **plain, "reasoning_content": thoughts}


def holds_ids(content: Any) -> bool:
    """Tell whether a message's content is a list of ids, which may be empty."""
    if isinstance(content, str) or not isinstance(content, (Sequence, np.ndarray)):
        return False
    return all(isinstance(token, (int, np.integer)) and not isinstance(token, bool) for token in content)


def _first_unwritable(text: str) -> str:
    """Return the first character that cannot be written, as an escape."""
    return next(repr(character) for character in text if not is_unicode(character))


def _plain(value: Any, name: str) -> Any:
    """Return a value out of plain types alone: an object's methods are none of a template's business."""
    if type(value) is str and not is_unicode(value):
        raise ValueError(
            f"{name} holds half of a surrogate pair, {_first_unwritable(value)}, which no text can; take it out"
        )
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, Mapping):
        return {_plain(key, name) if isinstance(key, str) else key: _plain(each, name) for key, each in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(each, name) for each in value]
    raise ValueError(f"{name} holds a {type(value).__name__}; give strings, numbers, lists and dictionaries of them")


def with_system(messages: Sequence[Message], system: str | None) -> list[Message]:
    """Return messages with a system message in front, unless they have their own; None: as they are.

    Raises:
        ValueError: it is not text.
    """
    if system is not None and not isinstance(system, str):
        raise ValueError(f"system is {system!r:.80}; give a string")
    words = _plain(system, "system")
    if words is None or messages[0].get("role") == "system":
        return list(messages)
    return [{"role": "system", "content": words}, *messages]


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with every string of it changed but the keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [map_strings(each, change) for each in value]
    return {key: map_strings(each, change) for key, each in value.items()} if isinstance(value, dict) else value


def keys_of(value: Any) -> list[str]:
    """Return the keys in plain data that are strings."""
    if isinstance(value, dict):
        return [
            *filter(lambda key: isinstance(key, str), value),
            *(k for each in value.values() for k in keys_of(each)),
        ]
    return [key for each in value for key in keys_of(each)] if isinstance(value, list) else []


def strings_of(value: Any) -> list[str]:
    """Return the strings in plain data, keys left out."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    map_strings(value, keep)
    return found
