"""Bits per byte: windows that share a pass are scored as each would be alone."""

import math
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer

from oracles.checkpoints.tokenization import end_of_text_id
from oracles.factory.train import TOKENIZER
from oracles.factory.training import held_out
from oracles.factory.training.recipes import RECIPES
from oracles.transformer.eager import Transformer

CODE = Tokenizer.from_file(str(TOKENIZER))
CONFIG = RECIPES["tiny"].recipe.config
TEXTS = ["".join(f"def f{i}(x):\n    return x + {i}\n\n" for i in range(size)) for size in (1, 14, 2, 9, 4, 1)]


@torch.no_grad()
def one_window_at_a_time(model: Transformer, texts: list[str], length: int) -> float:
    """Return the bits per byte by the definition: half a window of context, or all that there is."""
    total, num_bytes, half = 0.0, 0, length // 2
    for text in texts:
        ids = torch.tensor([end_of_text_id(CODE), *CODE.encode(text).ids])
        for at in range(1, len(ids)):
            # The window that predicts ids[at]: the first of those, half a window apart, that reach it.
            start = max(0, math.ceil((at - length) / half)) * half
            law = model(ids[None, start:at])[0, -1].log_softmax(-1)
            total -= law[ids[at]].double().item()
        num_bytes += len(text.encode())
    return total / math.log(2) / num_bytes


@pytest.mark.parametrize("context", [16, 17, 64])
def test_it_is_the_definition_whatever_shares_a_pass(monkeypatch, context):
    model = Transformer(replace(CONFIG, max_context=context), seed=4)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(20)  # laws far from uniform
    expected = one_window_at_a_time(model, TEXTS, context)
    for tokens_at_once in (1, 200, 10_000):
        monkeypatch.setattr(held_out, "TOKENS_AT_ONCE", tokens_at_once)
        assert held_out.bits_per_byte(model, CODE, TEXTS) == pytest.approx(expected, rel=1e-5)
