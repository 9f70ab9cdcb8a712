"""Check that a head reads the layers that it was trained on, by its drafts from these and from neighbouring ones."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from oracles.heads.aux_layers import AuxLayers
from oracles.heads.eagle3_loading import LoadedEagle3
from specdec.cache import prefill
from specdec.contracts import Features, HostOracle, IntArray, Needs, Scores, pad_rows

NUM_TEXTS, NUM_NEW = 8, 32
# From this ratio of a neighbour's acceptance to its own, a head probably reads other layers than it was trained on.
SUSPICIOUS = 1.5
# Heads that were trained for the oracle accept more than this.
NEAR_NOTHING = 0.05
_QUESTIONS = (
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Explain why the sky is blue to a child of eight.",
    "What is the capital of France, and what is it known for?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List five ways to save water at home.",
    "A train leaves at 9:40 and arrives at 13:05. How long does it take?",
    "Translate into German: The weather is fine today, so we walk to the lake.",
    "Summarise in two sentences how vaccines work.",
)


def check_convention(head: LoadedEagle3, oracle: HostOracle) -> dict[str, float]:
    """Warn if a head drafts much better from the layers next to those that it reads.

    The oracle writes eight texts of 32 tokens greedily, and the head reads them: a draft of one token after every id
    counts as accepted if it is the oracle's next one.

    Args:
        head: reads some layers of the oracle.
        oracle: the one that it drafts for. The prompts are conversations if it has a chat template, texts if it has a
            tokenizer, else random ids.

    Returns:
        The rate of accepted drafts, by the layers that were read.

    Raises:
        ValueError: the oracle's context is too short for such texts, or the head returns NaN.

    Warns:
        UserWarning: a neighbour's rate is at least 1.5 times as high; the warning has both rates. Or no neighbour's
            rate is, and the head's own is below 5 %.
    """
    candidates = {"as loaded": head.aux_layers}
    for name, shift in (("one layer lower", -1), ("one layer higher", 1)):
        ids = tuple(layer + shift for layer in head.aux_layers.ids)
        try:
            candidates[name] = replace(head.aux_layers, ids=ids)
        except ValueError:  # the oracle lacks such a layer
            continue
    prompts = _prompts(oracle)
    texts = _continue(oracle, prompts)
    starts = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    layers = tuple(sorted({layer for read in candidates.values() for layer in read.outputs}))
    hidden = _hidden(oracle, texts, layers)
    rates = {}
    for name, read in candidates.items():
        states = tuple(hidden[layers.index(layer)] for layer in read.outputs)
        rates[name] = acceptance(head.reading(read), texts, starts, states)
    _warn(candidates, rates)
    return rates


def acceptance(
    head: LoadedEagle3, texts: Sequence[IntArray], starts: IntArray, states: tuple[torch.Tensor, ...]
) -> float:
    """Return how often the head's likeliest id is the next id of a text, from position ``starts[b]`` on.

    Args:
        head: reads ``states``.
        texts: ids.
        starts: ``[B]``, at least 1.
        states: ``[B, L, D]`` for each layer, the oracle's.

    Raises:
        ValueError: the head returns NaN.
    """
    rows, counts = np.arange(len(texts)), np.array([len(text) - 1 for text in texts], dtype=np.int64)
    width = int(counts.max())
    cache: Any = head.new_cache(len(texts), width)
    head.put(Features(rows, np.zeros_like(counts), counts, states), cache)
    ids = torch.from_numpy(pad_rows([text[1:] for text in texts]))
    counts_there = torch.from_numpy(counts).to(head.device)
    logits = head.score(ids.to(head.device), None, counts_there, cache, rows).logits
    assert logits is not None
    # Slot j holds id j + 1, and drafts id j + 2.
    drafted, following = logits[:, :-1].argmax(-1).cpu(), ids[:, 1:]
    slots = torch.arange(width - 1)
    counted = (slots + 2 >= torch.from_numpy(starts)[:, None]) & (slots + 1 < torch.from_numpy(counts)[:, None])
    if logits[:, :-1].isnan().any(-1).cpu()[counted].any():
        raise ValueError("the head's logits are NaN: its weights hold NaN, or overflow in the oracle's dtype")
    return float((drafted == following)[counted].double().mean())


def _warn(candidates: dict[str, AuxLayers], rates: dict[str, float]) -> None:
    own = rates["as loaded"]
    told = f"the head accepts {own:.1%} of its drafts reading {candidates['as loaded']}"
    better = [name for name, rate in rates.items() if rate > 0 and rate >= SUSPICIOUS * own]
    messages = [
        f"{told}, and {rates[name]:.1%} reading {name}: the {candidates[name]}. Load it with aux_layers='inputs' or "
        "'outputs', whichever gives those"
        for name in better
    ]
    if not better and own < NEAR_NOTHING:
        messages.append(f"{told}: it was trained for another oracle, or reads other layers than its config names")
    for message in messages:
        warnings.warn(message, UserWarning, stacklevel=4)


def _prompts(oracle: HostOracle) -> list[IntArray]:
    """Return eight prompts of two ids or more, short enough for the oracle's context."""
    most = oracle.max_context - NUM_NEW - 1
    if most < 2:
        raise ValueError(f"check=True writes {NUM_NEW} tokens a text: max_context {oracle.max_context} is short")
    if oracle.tokenizer is None:
        random = np.random.default_rng(0)
        return [random.integers(oracle.vocab_size, size=min(8, most)) for _ in range(NUM_TEXTS)]
    encoder = oracle.chat_template
    if encoder is not None:
        ids = [encoder.encode([{"role": "user", "content": question}]) for question in _QUESTIONS]
    else:
        ids = [oracle.tokenizer.encode(question).ids for question in _QUESTIONS]
    return [np.array(prompt[-most:], dtype=np.int64) for prompt in ids]


def _continue(oracle: HostOracle, prompts: list[IntArray]) -> list[IntArray]:
    """Return the prompts with the oracle's greedy continuations."""
    rows, lengths = np.arange(len(prompts)), np.array([len(prompt) for prompt in prompts])
    cache: Any = oracle.new_cache(len(prompts), int(lengths.max()) + NUM_NEW)
    prefill(oracle, cache, rows, prompts)
    latest = torch.tensor([[prompt[-1]] for prompt in prompts], device=oracle.device)
    one, written = torch.ones(len(prompts), dtype=torch.int64, device=oracle.device), []
    for _ in range(NUM_NEW):
        scores: Scores = oracle.score(latest, None, one, cache, rows, "last")
        cache.commit(rows, None, np.ones_like(rows))
        latest = scores.best[0].to(oracle.device)
        written.append(latest.cpu().numpy())
    new = np.concatenate(written, axis=1)
    return [np.concatenate([prompt, ids]) for prompt, ids in zip(prompts, new, strict=True)]


def _hidden(oracle: HostOracle, texts: list[IntArray], layers: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Return ``[B, L, D]`` the outputs of layers at every id of the texts except the last."""
    rows = np.arange(len(texts))
    cache = oracle.new_cache(len(texts), max(map(len, texts)) + 128)
    scores, _ = prefill(oracle, cache, rows, texts, Needs(hidden=layers))
    assert scores is not None
    return scores.hidden
