"""From what a user hands in to checked requests: every bad value is refused here, before anything is computed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from numbers import Integral
from typing import Any

from specdec.contracts import IntArray, Oracle, as_recorded
from specdec.grammars import Grammar, make_grammars
from specdec.requests.prompt_ids import Prompt, check_ids, encode_prompt, list_prompts
from specdec.requests.stop_lists import Stops, stops_of
from specdec.sampling import SamplingParams, Seed
from specdec.theory import check_count

# Seeds are folded into keys of 64 bits.
_SEEDS = range(-(2**63), 2**63)


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
        max_draft_tokens: tokens along a path of its drafts, at most; None: as many as are offered.
    """

    prompt: IntArray
    max_length: int
    sampling: SamplingParams
    stop_strings: tuple[str, ...]
    stop_ids: tuple[tuple[int, ...], ...]
    seed: Seed
    grammar: Grammar | None = None
    max_draft_tokens: int | None = None


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


def seed_of_one(seed: Seed | Sequence[Seed]) -> int | Sequence[Seed]:
    """Return the seed argument of a run of one request, in which a tuple is a seed and not a list of seeds."""
    return [seed] if isinstance(seed, tuple) else seed


def check_rows(batch_size: int | None, max_length: int | None = None) -> tuple[int, int]:
    """Return the rows and the length that are asked for, 0 for None.

    Raises:
        ValueError: one is neither None nor a positive integer, or a length is asked for without rows.
    """
    for name, value in (("batch_size", batch_size), ("max_length", max_length)):
        if value is not None:
            check_count(name, value)
    if max_length is not None and batch_size is None:
        raise ValueError(f"max_length={max_length}: give batch_size too, the rows for requests that are added")
    return int(batch_size or 0), int(max_length or 0)


def check_draft_tokens(max_draft_tokens: int | None) -> int | None:
    """Return a request's longest draft; ValueError if it is neither None nor an integer, 0 or more."""
    if max_draft_tokens is None:
        return None
    check_count("max_draft_tokens", max_draft_tokens, least=0)
    return int(max_draft_tokens)


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
        banned = {token for token, bias in one.logit_bias.items() if bias == -inf}
        if len(banned.union(oracle.eos_ids if one.min_new_tokens else ())) == oracle.vocab_size:
            why = " (min_new_tokens bans EOS)" if one.min_new_tokens else ""
            raise ValueError(f"sampling[{i}].logit_bias bans every id{why}: allow one")
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
