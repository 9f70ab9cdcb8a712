"""On CPU in float32 a node's logits are bitwise independent of everything but the ids of its path."""

import numpy as np
import pytest
import torch

from oracles.transformer import eager
from oracles.transformer.bits import has_bitwise_scores
from oracles.transformer.linear import Linear
from tests.support.backends import BITWISE_PACKS
from tests.support.models.scoring import append
from tests.support.models.tiny_models import small_model
from tests.support.pairwise import pairwise

SHAPES = [
    {},
    {"hidden_size": 96, "num_heads": 6, "num_kv_heads": 6, "intermediate_size": 256},
    {"head_dim": 24, "num_kv_heads": 1, "sliding_window": 40},
    {"head_dim": 64, "intermediate_size": 1600, "norm": "layer", "activation": "gelu", "gated": False},
]


@pytest.mark.parametrize("changes", SHAPES)
def test_chunking_of_the_prompt_changes_no_bit(changes, pack):
    model = pack(small_model(**changes))
    assert model.bitwise
    ids = torch.randint(23, (200,), generator=torch.Generator().manual_seed(0))
    whole = append(model, model.new_cache(1, 200), 0, ids, width=128)
    for width in (1, 7, 64, 100):
        assert torch.equal(append(model, model.new_cache(1, 200), 0, ids, width=width), whole), width


@pairwise({"changes": SHAPES, "batch": (2, 9, 64), "pack": BITWISE_PACKS})
def test_batch_mates_lengths_and_holes_change_no_bit(changes, batch, pack):
    model = pack(small_model(**changes))
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(23, (80,), generator=generator)
    alone = append(model, model.new_cache(1, 80), 0, ids, width=1)
    cache = model.new_cache(batch + 1, 256)
    rows = np.delete(np.arange(batch + 1), batch // 2)
    for row in rows:
        length = 72 if row == rows[-1] else int(torch.randint(1, 150, (), generator=generator))
        text = ids[:72] if row == rows[-1] else torch.randint(23, (length,), generator=generator)
        append(model, cache, row, text, width=128)
    tokens = torch.randint(23, (batch, 8), generator=generator)
    tokens[-1] = ids[72:]
    logits = model.score(tokens, None, torch.full((batch,), 8), cache, rows).logits
    assert torch.equal(logits[-1], alone[72:])


def test_the_widest_tree_changes_no_bit(pack):
    model = pack(small_model())
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(23, (70,), generator=generator)
    alone = append(model, model.new_cache(1, 80), 0, ids, width=1)
    cache = model.new_cache(1, 256)
    append(model, cache, 0, ids[:62])
    # The path's eight nodes are spread over 128 slots, two blocks wide.
    tokens, parents = torch.randint(23, (1, 128), generator=generator), torch.zeros(1, 128, dtype=torch.int64)
    slots = [0, 1, 20, 21, 64, 90, 126, 127]
    tokens[0, slots] = ids[62:]
    parents[0, slots] = torch.tensor([-1, *slots[:-1]])
    logits = model.score(tokens, parents, torch.tensor([128]), cache, np.array([0])).logits
    assert torch.equal(logits[0, slots], alone[62:])


@pytest.mark.parametrize(("inner", "outer"), [(33, 65), (384, 1152), (1536, 576), (2048, 768)])
def test_packed_rows_do_not_depend_on_their_number(inner, outer):
    generator = torch.Generator().manual_seed(inner)
    weight = torch.randn(outer, inner, generator=generator)
    layer = Linear.of(weight)
    x, residual = torch.randn(300, inner, generator=generator), torch.randn(300, outer, generator=generator)
    layer.pack()
    whole = layer(x, add=residual)
    # A sum of n products, in any order, is off by at most n roundings of the sum of their magnitudes.
    exact = residual.double() + x.double() @ weight.double().T
    magnitude = residual.double().abs() + x.double().abs() @ weight.double().abs().T
    assert bool(((whole - exact).abs() <= (inner + 1) * torch.finfo(torch.float32).eps * magnitude).all())
    for count in (1, 2, 3, 8, 31, 128):
        assert torch.equal(layer(x[5 : 5 + count], add=residual[5 : 5 + count]), whole[5 : 5 + count]), count


def test_other_types_promise_nothing():
    assert not small_model(dtype=torch.float64).pack().bitwise
    assert not small_model(dtype=torch.bfloat16).pack().bitwise
    assert not small_model().bitwise


def test_the_check_at_load_sees_a_broken_kernel(monkeypatch):
    plain = torch.ops.mkldnn._linear_pointwise

    class Broken:
        binary = plain.binary

        def __call__(self, x, *rest):
            return plain(x, *rest) * (1.0 + 1e-6 * (x.shape[0] > 4))

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", Broken())
    monkeypatch.setattr(eager, "has_bitwise_scores", has_bitwise_scores)  # whatever was found of these weights before
    assert not small_model().pack().bitwise


@pytest.mark.parametrize("times", [False, True])
def test_a_packed_layer_adds_after_its_activation(times: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = Linear(24, 24, True, "silu")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        x, other = torch.randn(2, 9, 24, generator=generator)
        plain = layer(x, None, other) if times else layer(x, other)
        layer.pack()
        packed = layer(x, None, other) if times else layer(x, other)
    torch.testing.assert_close(packed, plain)
