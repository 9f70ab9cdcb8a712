"""Where golden runs take place: models, prompts and stops whose numbers are the same on every machine.

Weights and tables are made of whole numbers: of the raw stream of ``numpy``'s PCG64, whose numbers are promised never
to change. Random laws and weights of torch depend on the libraries that it was built with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import oracles
from drafts import NGram
from oracles import TabularLM, Transformer, TransformerConfig
from oracles.native import NativeTransformer
from specdec.contracts import IntArray, Oracle
from specdec.prompts import load_prompts
from tests.support.registry import Models

SIZE, EOS = 6, 5
SHIPPED = Path(__file__).parents[2] / "experiments" / "prompts" / "code.jsonl"
# More prompts than a batch of 8 has rows, so that requests join a run when others leave it.
LENGTHS = (1, 12, 3, 24, 5, 2, 9, 4, 7, 1, 16)
# One row comes near the context's end.
CONTEXT = 32


@dataclass(frozen=True)
class World:
    """What runs have in common.

    Attributes:
        models: sources are made of them.
        target: is decoded, unless a source names another one.
        prompts: of ragged lengths.
        stops: one entry per prompt.
        max_new_tokens: of each request.
    """

    models: Models
    target: Oracle
    prompts: Sequence[Any]
    stops: Sequence[Any]
    max_new_tokens: int


def whole_numbers(seed: int, shape: Sequence[int], below: int) -> IntArray:
    """Return whole numbers from 0 to ``below`` - 1, a power of two."""
    raw = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    return (raw >> 11).astype(np.int64).reshape(shape) % below


def table(seed: int, order: int, blend: IntArray | None = None) -> tuple[TabularLM, IntArray]:
    """Return a model with peaked laws and a rare EOS, and the whole numbers that its laws are in proportion to.

    Args:
        seed: of the numbers.
        order: ids that a law depends on.
        blend: numbers to add: the closer the laws are to another model's.
    """
    weights = 1 + whole_numbers(seed, (SIZE,) * (order + 1), 16) ** 3
    weights[..., EOS] //= 16
    if blend is not None:
        weights = weights + 2 * blend
    return TabularLM(weights / weights.sum(-1, keepdims=True), EOS, CONTEXT), weights


def network(seed: int, dtype: torch.dtype, pack: Any, noise: float = 0.0, step: float | None = None) -> Any:
    """Return a packed network of three layers whose weights are multiples of 2^-12, with a rare EOS.

    Args:
        seed: of the weights.
        dtype: of the arithmetic.
        pack: prepares a network for a backend.
        noise: how far weights are moved by other numbers: another network, whose laws are near.
        step: weights are rounded to multiples of it.
    """
    config = TransformerConfig(
        vocab_size=SIZE, hidden_size=16, num_layers=3, num_heads=4, num_kv_heads=2, intermediate_size=24,
        max_context=CONTEXT, head_bias=True,
    )  # fmt: skip
    model = Transformer(config)
    with torch.no_grad():
        for i, (name, parameter) in enumerate(sorted(model.named_parameters())):
            if "norm" in name:
                continue
            near, far = (whole_numbers(1000 * s + i, parameter.shape, 2048) - 1024 for s in (seed, seed + 1))
            weights = torch.from_numpy((near + noise * far) / 1024)
            parameter.copy_(weights if step is None else (weights / step).round() * step)
        model.lm_head.bias[EOS] -= 4
    model.eos_ids = (EOS,)
    return pack(model.to(dtype).eval())


@cache
def world(name: str, backend: str) -> World:
    """Return the world of that name, "table", "tiny" or "code", its transformers computed by "native" or "eager"."""
    return WORLDS[name](backend)


def _ids() -> list[list[int]]:
    return [whole_numbers(50 + i, (n,), 4).tolist() for i, n in enumerate(LENGTHS)]


def _ngrams() -> Any:
    return NGram.train([(whole_numbers(90 + i, (60,), 8) % 5).tolist() for i in range(4)], SIZE, progress=False).model


def _small(target: Oracle, models: Models) -> World:
    stops = [[[2, 0], [3, 1]] if i % 3 == 1 else None for i in range(len(LENGTHS))]
    return World(models, target, _ids(), stops, 12)


def _table(backend: str) -> World:
    target, weights = table(1, 3)
    layered, view = (network(1, torch.float64, Transformer.pack, step=step) for step in (None, 0.5))
    return _small(target, Models(table(2, 3, weights)[0], table(3, 3, weights)[0], layered, view, _ngrams()))


def _tiny(backend: str) -> World:
    pack = NativeTransformer if backend == "native" else Transformer.pack
    target, model, other = (network(1, torch.float32, pack, noise) for noise in (0, 0.25, 0.5))
    return _small(target, Models(model, other, target, network(1, torch.float32, pack, step=0.5), _ngrams()))


def _code(backend: str) -> World:
    """Return embedded checkpoints, and the ends of shipped prompts."""
    load = {"dtype": "float32", "device": "cpu", "backend": backend}
    target = oracles.load("code", **load)
    texts = [prompt.text for prompt in load_prompts(str(SHIPPED), None, 90)][::10]
    ngrams = NGram.train([target.tokenizer.encode(text).ids for text in texts], target.vocab_size, 3, progress=False)
    view = oracles.load("code", **load, weights="int8")
    models = Models(
        oracles.load("code-draft", **load), oracles.load("code-draft-tiny", **load), target, view, ngrams.model
    )
    prompts = [text[-(8 + 24 * i) :] for i, text in enumerate(texts)]
    return World(models, target, prompts, [["\n\n"] if i % 3 == 0 else None for i in range(len(prompts))], 24)


WORLDS = {"table": _table, "tiny": _tiny, "code": _code}
