"""Stops as they are handed in, checked, for each request: strings, and sequences of ids."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from specdec.contracts import ChatEncoder, Oracle, capability_of
from specdec.requests.prompt_ids import BYTES, check_ids, check_text, is_conversation
from specdec.sampling import SamplingParams

Stop = str | Sequence[int]
StopLists = tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]
Stops = Stop | Sequence[Stop] | Sequence[Sequence[Stop] | None] | None


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


def _with_ends_of_turns(oracle: Oracle, own: StopLists) -> StopLists:
    """Return stops with those of an answer; what is an EOS id anyway ends it as such."""
    encoder: ChatEncoder | None = capability_of(oracle, "chat_template")
    assert encoder is not None
    strings, sequences = own
    ends = [(token,) for token in encoder.end_ids if token not in oracle.eos_ids]
    return tuple(dict.fromkeys((*strings, *encoder.stop_strings))), tuple(dict.fromkeys((*sequences, *ends)))


def _stops(oracle: Oracle, stop: Any, count: int) -> list[StopLists]:
    """Return the stop strings and the stop id sequences of each request."""
    if _holds(stop, torch.Tensor):
        raise ValueError("stop holds a tensor; give strings or lists of ids: tensor.tolist()")
    if _holds(stop, BYTES):
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
    tokenizer: Any = oracle.tokenizer
    if strings and tokenizer is None:
        raise ValueError(f"{name} has the string {strings[0]!r}, but the oracle has no tokenizer; pass stops as ids")
    sequences = tuple(tuple(int(t) for t in s) for s in listed if not isinstance(s, str))
    if any(not s for s in (*strings, *sequences)):
        raise ValueError(f"{name} has an empty entry; remove it")
    for text in strings:
        check_text(text, name)
        if held := next((token for token in special if token in text), None):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            raise ValueError(
                f"{name} has {text!r}: texts leave out the special token {held!r}, so that the stop would be missed "
                f"there; give ids, such as {ids}, or the token alone"
            )
    for sequence in sequences:
        check_ids(oracle, sequence, name)
    return strings, sequences
