"""Checks that a file holds an n-gram model; drafting with one relies on all of them."""

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from specdec.contracts import FloatArray, IntArray
from specdec.drafting.ngram_model import END, MAX_ORDER, NGramModel, levels

NUMBERS = {"order": MAX_ORDER, "vocab_size": 2**31}  # and how large they may be: ids are int32
# The type of each array as safetensors names it, and its length: S states and P pairs.
ARRAYS = {
    "keys": ("I64", "S"),
    "starts": ("I64", "S + 1"),
    "tokens": ("I32", "P"),
    "probs": ("F64", "P"),
    "backoff": ("F64", "S"),
    "best": ("I64", "S"),
    "best_probs": ("F64", "S"),
    "successor": ("I64", "S"),
}
_SLACK = 1e-6  # of sums of probabilities


def check_header(metadata: Mapping[str, str], arrays: Mapping[str, tuple[str, list[int]]]) -> tuple[int, int]:
    """Return a model's order and vocabulary size, after checking a file's header.

    Args:
        metadata: its strings.
        arrays: type and shape of each array.

    Raises:
        ValueError: a name, number, type or shape that no model has.
    """
    found, wanted = sorted([*metadata, *arrays]), sorted([*NUMBERS, *ARRAYS])
    _need(found == wanted, f"it holds {found}, not {wanted}")
    order, vocab_size = (_number(name, metadata[name]) for name in NUMBERS)
    num_states, num_pairs = (next(iter(arrays[name][1]), 0) for name in ("keys", "tokens"))
    lengths = {"S": num_states, "S + 1": num_states + 1, "P": num_pairs}
    for name, (kind, length) in ARRAYS.items():
        wanted_form = (kind, [lengths[length]])
        beside = f"beside {num_states} keys and {num_pairs} tokens it must be {wanted_form}"
        _need(arrays[name] == wanted_form, f"{name} is {arrays[name]}; {beside}")
    return order, vocab_size


def check_contents(model: NGramModel) -> None:
    """Check the arrays of a model, whose types and shapes fit.

    Raises:
        ValueError: they are not a trie of contexts, or not laws; names the array.

    Cost: O(P log P) time, O(P) memory.
    """
    _check_states(model)
    _check_starts(model)
    owners = np.repeat(np.arange(len(model.keys)), np.diff(model.starts))
    pairs = owners * model.vocab_size + model.tokens
    _need((np.diff(pairs) > 0).all(), "tokens do not ascend within every state")
    _check_laws(model, _lower(model, owners, pairs))
    _need(_within(model.best, model.vocab_size), "best holds ids outside the vocabulary")
    _need(_within(model.successor, len(model.keys)), "successor names states that do not exist")


def _need(holds: Any, problem: str) -> None:
    if not holds:
        raise ValueError(problem)


def _number(name: str, text: str) -> int:
    """Return a positive number within its bound."""
    value = int(text) if re.fullmatch("[0-9]{1,18}", text) else 0
    _need(0 < value <= NUMBERS[name], f"{name} is {text!r:.40}; it must be a number from 1 to {NUMBERS[name]}")
    return value


def _within(ids: IntArray, stop: int) -> bool:
    return bool(((ids >= 0) & (ids < stop)).all())


def _check_states(model: NGramModel) -> None:
    """Check that each state extends an earlier one and that no context is longer than the order allows."""
    keys, num_states = model.keys, len(model.keys)
    _need(num_states * model.vocab_size < END, f"vocab_size {model.vocab_size} is too large for {num_states} states")
    closed = num_states > 0 and keys[-1] == END and (keys >= 0).all() and (np.diff(keys) > 0).all()
    _need(closed, f"keys do not ascend from 0 to the closing {END}")
    earlier = keys[:-1] // model.vocab_size < np.arange(1, num_states)
    _need(earlier.all(), "keys extend states that come later")
    deepest = sum(1 for _ in islice(levels(keys, model.vocab_size), model.order + 1))
    _need(deepest <= model.order, f"order is {model.order}, but keys hold contexts of {model.order} ids")


def _check_starts(model: NGramModel) -> None:
    starts, num_pairs = model.starts, len(model.tokens)
    _need(_within(starts, num_pairs + 1), f"starts point outside the {num_pairs} tokens")
    covered = starts[0] == 0 and starts[-1] == num_pairs and (np.diff(starts) > 0).all()
    _need(covered, "starts do not give every token to a state and every state a token")
    _need(_within(model.tokens.astype(np.int64), model.vocab_size), "tokens lie outside the vocabulary")


def _lower(model: NGramModel, owners: IntArray, pairs: IntArray) -> FloatArray:
    """Return ``[P]`` the probability of each pair's token in the context that is one id shorter."""
    deeper = model.starts[1]
    shorter = model.keys[owners[deeper:] - 1] // model.vocab_size * model.vocab_size + model.tokens[deeper:]
    at = np.searchsorted(pairs[:-1], shorter)
    _need((pairs[at] == shorter).all(), "tokens follow a context that do not follow the shorter one")
    return np.concatenate([np.full(deeper, 1 / model.vocab_size), model.probs[at]])


def _check_laws(model: NGramModel, lower: FloatArray) -> None:
    """Check that the law of every state is a law."""
    for name in ("probs", "backoff", "best_probs"):
        values = getattr(model, name)
        _need(((values > 0) & (values <= 1 + _SLACK)).all(), f"{name} hold what is no probability")
    seen, below = (np.add.reduceat(values, model.starts[:-1]) for values in (model.probs, lower))
    mass = seen + model.backoff * (1 - below)
    _need((abs(mass - 1) <= _SLACK).all(), "probs and backoff of some state do not add up to 1")
