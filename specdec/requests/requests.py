"""From what a user hands in to checked requests: every bad value is refused here, before anything is computed."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from specdec.contracts import ChatEncoder, IntArray, Oracle, as_recorded, capability_of
from specdec.grammars import Grammar, make_grammars
from specdec.sampling import SamplingParams, Seed
from specdec.system import num_own_calls
from specdec.theory import check_count

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | torch.Tensor | IntArray | Sequence[Message]
Stop = str | Sequence[int]
StopLists = tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]
Stops = Stop | Sequence[Stop] | Sequence[Sequence[Stop] | None] | None

_BYTES = (bytes, bytearray, memoryview)
# Seeds are folded into keys of 64 bits.
_SEEDS = range(-(2**63), 2**63)
# Templates whose oracles were given raw text, by their identity: each is warned of once.
_TOLD: WeakValueDictionary[int, ChatEncoder] = WeakValueDictionary()


class RawPrompt(UserWarning):
    """Text without a conversation around it was given to an oracle that has a chat template."""


@dataclass(frozen=True)
class Request:
    """One prompt, and its output as it was asked for. One made of a conversation ends where its answer does.

    Attributes:
        prompt: ``[L]`` ids, L >= 1.
        max_length: prompt and output together never exceed it (tokens allowed, and the context limit).
        stop_strings: end the request when the output's text contains one.
        stop_ids: end the request when the output ends in one.
        seed: of the request's random stream.
        grammar: what the output follows; the request ends as it is finished.
    """

    prompt: IntArray
    max_length: int
    sampling: SamplingParams
    stop_strings: tuple[str, ...]
    stop_ids: tuple[tuple[int, ...], ...]
    seed: Seed
    grammar: Grammar | None = None


def make_requests(
    oracle: Oracle,
    prompts: Prompt | Sequence[Prompt],
    max_new_tokens: int,
    sampling: SamplingParams | Sequence[SamplingParams] | None,
    seed: int | Sequence[Seed],
    stop: Stops,
) -> list[Request]:
    """Return one checked request per prompt; arguments as in ``SpeculativeDecoder.generate``.

    Raises:
        ValueError: names the argument, the prompt and the fix.
        ImportError: a request has a grammar, and the library for it is missing.
    """
    asked = list_prompts(prompts)
    check_count("max_new_tokens", max_new_tokens, least=0)
    names = [f"prompts[{i}]" for i in range(len(asked))]
    ids = [encode_prompt(oracle, prompt, name) for prompt, name in zip(asked, names, strict=True)]
    params = _per_request(sampling, len(ids), oracle)
    seeds = _seeds(seed, len(ids))
    stops = stops_of(oracle, asked, stop, params)
    lengths = [_max_length(oracle, p, int(max_new_tokens), name) for p, name in zip(ids, names, strict=True)]
    grammars = make_grammars(oracle, [one.constraint for one in params], [len(p) for p in ids])
    columns = zip(ids, lengths, params, stops, seeds, grammars, strict=True)
    return [
        Request(p, length, s, strings, ends, one, grammar) for p, length, s, (strings, ends), one, grammar in columns
    ]


def stops_of(
    oracle: Oracle, prompts: Sequence[Any], stop: Stops, sampling: Sequence[SamplingParams]
) -> list[StopLists]:
    """Return the stop strings and the stop id sequences of each request.

    Args:
        oracle: its special tokens are ids, and its chat template says where an answer ends.
        prompts: as they were given: requests made of conversations end with their turn too.
        stop: as for ``generate``.
        sampling: of each request; one that ignores EOS goes on after its turn.

    Raises:
        ValueError: a stop cannot be used, with the fix.
    """
    return [
        _with_ends_of_turns(oracle, own) if is_conversation(prompt) and not one.ignore_eos else own
        for prompt, own, one in zip(prompts, _stops(oracle, stop, len(prompts)), sampling, strict=True)
    ]


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


def seed_of_one(seed: Seed | Sequence[Seed]) -> int | Sequence[Seed]:
    """Return the seed argument of a run of one request, in which a tuple is a seed and not a list of seeds."""
    return [seed] if isinstance(seed, tuple) else seed


def check_batch_size(batch_size: int | None) -> int | None:
    """Return ``batch_size``, or raise ValueError if it is neither None (all prompts at once) nor a positive integer."""
    if batch_size is None:
        return None
    check_count("batch_size", batch_size)
    return int(batch_size)


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
        prompt = oracle.tokenizer.encode(prompt).ids
    if isinstance(prompt, _BYTES):
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


def _with_ends_of_turns(oracle: Oracle, own: StopLists) -> StopLists:
    """Return stops with those of an answer; what is an EOS id anyway ends it as such."""
    encoder: ChatEncoder | None = capability_of(oracle, "chat_template")
    assert encoder is not None
    strings, sequences = own
    ends = [(token,) for token in encoder.end_ids if token not in oracle.eos_ids]
    return tuple(dict.fromkeys((*strings, *encoder.stop_strings))), tuple(dict.fromkeys((*sequences, *ends)))


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


def _max_length(oracle: Oracle, prompt: IntArray, max_new_tokens: int, name: str) -> int:
    prompt_length, recorded = len(prompt), as_recorded(oracle)
    if recorded is not None:
        return min(prompt_length + max_new_tokens, recorded.recorded_length(prompt, name))
    if prompt_length >= oracle.max_context and max_new_tokens > 0:
        raise ValueError(
            f"{name} has {prompt_length} tokens and the oracle's context is {oracle.max_context}: no room for a new "
            "token; shorten the prompt"
        )
    return min(prompt_length + max_new_tokens, max(oracle.max_context, prompt_length))


def _per_request(
    sampling: SamplingParams | Sequence[SamplingParams] | None, count: int, oracle: Oracle
) -> list[SamplingParams]:
    if sampling is None or isinstance(sampling, SamplingParams):
        params = [sampling or SamplingParams()] * count
    else:
        if isinstance(sampling, (str, Mapping)) or not isinstance(sampling, Iterable):
            raise ValueError(f"sampling={sampling!r} must be SamplingParams(...), or a list with one per prompt")
        params = list(sampling)
    if len(params) != count:
        raise ValueError(f"sampling has {len(params)} entries for {count} prompts; pass one, or one per prompt")
    for i, one in enumerate(params):
        if not isinstance(one, SamplingParams):
            raise ValueError(f"sampling[{i}] is {type(one).__name__}, not SamplingParams")
        check_ids(oracle, one.logit_bias, f"sampling[{i}].logit_bias")
        if as_recorded(oracle) is not None and (read := one.reads_logits):
            raise ValueError(
                f"sampling[{i}] has {read[0]}={getattr(one, read[0])!r}, which needs the oracle's logits, and recorded "
                "text has none: leave it at its default"
            )
    return params


def _seeds(seed: int | Sequence[Seed], count: int) -> list[Seed]:
    if _is_int(seed):
        return [(_part_of_seed(seed, seed, "seed"), i) for i in range(count)]
    if isinstance(seed, str) or not isinstance(seed, Sequence):
        raise ValueError(f"seed={seed!r} must be an int or a list with one seed per prompt")
    if len(seed) != count:
        raise ValueError(f"seed has {len(seed)} entries for {count} prompts; pass an int, or one seed per prompt")
    return [_one_seed(one, f"seed[{i}]") for i, one in enumerate(seed)]


def _is_int(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _one_seed(seed: Any, name: str) -> Seed:
    """Return a seed in Python's own ints; errors as in ``_part_of_seed``."""
    if isinstance(seed, tuple):
        return tuple(_part_of_seed(part, seed, name) for part in seed)
    return _part_of_seed(seed, seed, name)


def _part_of_seed(part: Any, seed: Any, name: str) -> int:
    """Return a part of a seed; ValueError if it is not an integer, or if another one would give the same numbers."""
    if not _is_int(part):
        raise ValueError(f"{name} is {seed!r}; give an int or a tuple of ints")
    if int(part) not in _SEEDS:
        raise ValueError(f"{name} is {seed!r}, and 64 bits hold -2**63 to 2**63 - 1: give a smaller one")
    return int(part)


def _stops(oracle: Oracle, stop: Any, count: int) -> list[StopLists]:
    """Return the stop strings and the stop id sequences of each request."""
    if _holds(stop, torch.Tensor):
        raise ValueError("stop holds a tensor; give strings or lists of ids: tensor.tolist()")
    if _holds(stop, _BYTES):
        raise ValueError("stop holds bytes; give strings: text.decode(), or lists of ids")
    if stop is None or isinstance(stop, str):
        return [_stop_list(oracle, stop, "stop")] * count
    if isinstance(stop, Mapping) or not isinstance(stop, Iterable):
        raise ValueError(f"stop={stop!r} must be a string, or a list of strings or id lists")
    listed: Sequence[Any] = list(stop)
    if not listed or not all(s is None or _is_list_of_stops(s) for s in listed):
        return [_stop_list(oracle, listed, "stop")] * count
    if len(listed) != count:
        raise ValueError(
            f"stop has lists for {len(listed)} requests and there are {count} prompts; give one per prompt"
        )
    return [_stop_list(oracle, s, f"stop[{i}]") for i, s in enumerate(listed)]


def _holds(stop: Any, kind: type | tuple[type, ...]) -> bool:
    """Tell whether a value of a kind is given as stops, or somewhere in them."""
    return isinstance(stop, kind) or (isinstance(stop, (list, tuple)) and any(_holds(one, kind) for one in stop))


def _is_list_of_stops(entry: Any) -> bool:
    """Tell whether an entry is itself a list of stops (strings or id lists), and not a stop."""
    return not isinstance(entry, str) and isinstance(entry, Iterable) and all(isinstance(s, Iterable) for s in entry)


def _is_id_list(entry: Any) -> bool:
    return isinstance(entry, Iterable) and all(np.issubdtype(type(token), np.integer) for token in entry)


def _special_ids(oracle: Oracle) -> dict[str, int]:
    """Return the oracle's special tokens by their text."""
    if oracle.tokenizer is None:
        return {}
    return {t.content: i for i, t in oracle.tokenizer.get_added_tokens_decoder().items() if t.special}


def _stop_list(oracle: Oracle, stop: Any, name: str) -> StopLists:
    """Return the stop strings and the stop id sequences of one list."""
    listed: Sequence[Any] = [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(s, str) or _is_id_list(s) for s in listed):
        raise ValueError(f"{name} must be a list of strings or id lists; wrap a single id list in a list: [[...]]")
    # A special token never appears in decoded text: as a stop it is its id.
    special = _special_ids(oracle)
    listed = [(special[s],) if isinstance(s, str) and s in special else s for s in listed]
    strings = tuple(s for s in listed if isinstance(s, str))
    if strings and oracle.tokenizer is None:
        raise ValueError(f"{name} has the string {strings[0]!r}, but the oracle has no tokenizer; pass stops as ids")
    sequences = tuple(tuple(int(t) for t in s) for s in listed if not isinstance(s, str))
    if any(not s for s in (*strings, *sequences)):
        raise ValueError(f"{name} has an empty entry; remove it")
    for text in strings:
        check_text(text, name)
    for sequence in sequences:
        check_ids(oracle, sequence, name)
    return strings, sequences
