"""From prompts as they are handed in to ids: text, conversations, ids."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from specdec.contracts import ChatEncoder, IntArray, Oracle, capability_of, ids_before_text
from specdec.system import num_own_calls

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | torch.Tensor | IntArray | Sequence[Message]

BYTES = (bytes, bytearray, memoryview)
# Templates whose oracles were given raw text, by their identity: each is warned of once.
_TOLD: WeakValueDictionary[int, ChatEncoder] = WeakValueDictionary()


class RawPrompt(UserWarning):
    """Text without a conversation around it was given to an oracle that has a chat template."""


def is_conversation(prompt: Any) -> bool:
    """Tell whether a prompt is a list of messages."""
    return isinstance(prompt, (list, tuple)) and bool(prompt) and all(isinstance(one, Mapping) for one in prompt)


def list_prompts(prompts: Any) -> list[Any]:
    """Return prompts as a list; a bare list of messages is one conversation.

    Raises:
        ValueError: a single string, or something that cannot be iterated over.
    """
    if is_conversation(prompts):
        return [prompts]
    if isinstance(prompts, (str, Mapping)) or not isinstance(prompts, Iterable):
        raise ValueError("prompts must be a list of prompts; wrap a single prompt in a list: [prompt]")
    return list(prompts)


def encode_prompt(oracle: Oracle, prompt: Any, name: str) -> IntArray:
    """Return a prompt's ids ``[L]``; a string goes through the oracle's tokenizer, a conversation through its template.

    Raises:
        ValueError: the prompt cannot be used, with the fix.

    Warns:
        RawPrompt: a string, and the oracle has a template; once for each template.
    """
    if is_conversation(prompt):
        prompt = _encode_conversation(oracle, prompt, name)
    if isinstance(prompt, str):
        if oracle.tokenizer is None:
            raise ValueError(
                f"{name} is a string, but the oracle has no tokenizer; pass a list of ids, or give its checkpoint "
                "directory a tokenizer.json: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) of transformers "
                "writes it"
            )
        check_text(prompt, name)
        _warn_of_raw_text(oracle)
        prompt = _encode_text(oracle.tokenizer, prompt, name)
    if isinstance(prompt, BYTES):
        raise ValueError(f"{name} is {type(prompt).__name__}; give text, or a list of ids: list(...)")
    wrong_kind = f"{name} must be a string, a list of ids or a 1-D integer tensor, or a list of messages"
    try:
        ids = np.asarray(prompt.tolist() if isinstance(prompt, torch.Tensor) else prompt)
    except ValueError:  # nested lists of different lengths
        raise ValueError(wrong_kind) from None
    if ids.size == 0:
        raise ValueError(f"{name} is empty; give at least one token (for example the EOS id)")
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(wrong_kind)
    check_ids(oracle, ids.tolist(), name)
    return ids.astype(np.int64)


def _encode_text(tokenizer: Any, text: str, name: str) -> list[int]:
    """Return the ids of raw text, with what the tokenizer puts before it.

    Raises:
        ValueError: the text begins with what the tokenizer puts before it too.
    """
    encoded = tokenizer.encode(text)
    ids: list[int] = encoded.ids
    added = ids_before_text(encoded)
    if added and ids[len(added) : 2 * len(added)] == added:
        begins = tokenizer.decode(added, skip_special_tokens=False)
        raise ValueError(
            f"{name} begins with {begins!r}, and the tokenizer puts another one before it: leave it out, or give the "
            "messages of a conversation, or ids"
        )
    return ids


def _encode_conversation(oracle: Oracle, messages: Any, name: str) -> list[int]:
    encoder: ChatEncoder | None = capability_of(oracle, "chat_template")
    if encoder is None:
        fix = "pass text or ids, or set oracle.chat_template to a specdec.prompts.chat.ChatTemplate"
        raise ValueError(f"{name} is a conversation, but the oracle has no chat template; {fix}")
    try:
        return encoder.encode(messages)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _warn_of_raw_text(oracle: Oracle) -> None:
    encoder: ChatEncoder | None = capability_of(oracle, "chat_template")
    if encoder is None or id(encoder) in _TOLD:
        return
    with suppress(TypeError):  # one that takes no weak reference is warned of each time
        _TOLD[id(encoder)] = encoder
    how = '[[{"role": "user", "content": ...}]], or ids if raw text is meant'
    told = f"the oracle has a chat template, and a prompt is raw text: give {how}"
    warnings.warn(told, RawPrompt, stacklevel=1 + num_own_calls())


def check_text(text: str, name: str) -> None:
    """Raise ValueError if a text holds half of a surrogate pair, which no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has {text[error.start]!r} at character {error.start}: half of a surrogate pair is no text; remove "
            "it, or decode with errors='replace'"
        ) from error


def check_ids(oracle: Oracle, ids: Any, name: str) -> None:
    """Raise ValueError if an id lies outside the oracle's vocabulary."""
    size = oracle.vocab_size
    for token in ids:
        if not 0 <= token < size:
            raise ValueError(f"{name} has id {token}, outside the vocabulary 0..{size - 1} of the oracle")
