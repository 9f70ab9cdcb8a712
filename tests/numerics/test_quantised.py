"""Int8 weights: rounding by its definition, and what the transformer makes of them."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from oracles.quantisation import Quantised
from tests.exact.test_tree_scoring import FAMILIES, append, small_model
from tests.reference.transformer import logits_after

TINY = float(np.finfo(np.float32).tiny)
# float32 rounds the quotient, the scale and the product: 127 * 3 * 2^-24 of a scale at most.
SLACK = 2.0**-16


def a_weight(dtype: torch.dtype = torch.float32, spread: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    rows = torch.exp(spread * torch.randn(65, 1, generator=generator))
    return (rows * torch.randn(65, 47, generator=generator)).to(dtype)


def errors(weight: torch.Tensor, made: Quantised) -> torch.Tensor:
    """Return |w - w'| in scales."""
    exact = made.values.double() * made.scales.double()
    return (weight.double() - exact).abs() / made.scales.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_no_weight_moves_by_more_than_half_a_scale(spread, dtype):
    weight = a_weight(dtype, spread)
    made = Quantised.of(weight, "layer")
    wide = weight.float().numpy()
    scales = np.abs(wide).max(axis=1) / np.float32(127)
    assert np.array_equal(made.scales.numpy(), scales[:, None])
    assert np.array_equal(made.values.numpy(), np.rint(wide / scales[:, None]).astype(np.int8))
    assert errors(weight, made).max() <= 0.5 + SLACK
    assert (made.values.abs().amax(dim=1) == 127).all()
    assert np.array_equal(made.dequantised().numpy(), made.values.numpy().astype(np.float32) * scales[:, None])
    assert made.bytes == 65 * 47 + 65 * 4


@pytest.mark.parametrize("change", [1.02, 0.98])
def test_the_bound_would_notice_another_scale(change):
    weight = a_weight()
    made = Quantised.of(weight, "layer")
    assert errors(weight, Quantised(made.values, made.scales * change)).max() > 0.5 + SLACK


def test_halves_go_to_even_and_signs_are_kept():
    made = Quantised.of(torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0]]), "layer")
    assert made.scales.tolist() == [[1.0]]
    assert made.values.tolist() == [[127, 0, 2, 2, 0, -2, -127]]


def test_rows_of_zeros_and_of_the_smallest_numbers_divide_by_no_zero():
    weight = torch.tensor([[0.0, -0.0, 0.0], [1e-45, -1e-45, 0.0], [3e-37, -1e-38, 1e-40], [2e-36, 0.0, 1e-36]])
    made = Quantised.of(weight, "layer")
    assert made.values[:2].count_nonzero() == 0
    assert made.scales.tolist()[:3] == [[TINY]] * 3
    assert made.values[3].tolist() == [127, 0, 64]
    assert errors(weight, made).max() <= 0.5 + SLACK


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf, torch.finfo(torch.float32).max])
def test_weights_that_have_no_int8_value_are_refused_by_the_layers_name(special):
    model = small_model()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = special
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.up_proj: a weight is NaN, infinite"):
        model.quantise()


@pytest.mark.parametrize("tied", [False, True])
def test_a_packed_model_is_refused(tied):
    with pytest.raises(ValueError, match=r"lm_head was packed|q_proj was packed|proj was packed"):
        small_model(tie_embeddings=tied).pack().quantise()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_quantised_transformer_scores_with_what_its_weights_stand_for(family):
    model, plain = small_model(**FAMILIES[family]), small_model(**FAMILIES[family])
    tokens = torch.randint(23, (2, 9), generator=torch.Generator().manual_seed(1))
    linear = {name for name, _ in plain.named_parameters() if name.endswith("proj.weight")} | {"lm_head.weight"}
    if plain.config.tie_embeddings:
        linear = linear - {"lm_head.weight"} | {"model.embed_tokens.weight"}
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if name in linear:
                parameter.copy_(Quantised.of(parameter, name).dequantised())
    assert model.quantise().quantise() is model
    quantised = model(tokens)
    assert model.weight_type == "int8"
    assert torch.equal(quantised, plain(tokens))
    model.dequantise()
    assert model.weight_type == "float32"
    state, expected = model.state_dict(), plain.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert torch.equal(model(tokens), plain(tokens))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_packing_keeps_the_quantised_numbers(family):
    model, ids = small_model(**FAMILIES[family]).quantise(), torch.arange(12)
    weights, packed = small_model(**FAMILIES[family]).quantise().dequantise().state_dict(), model.pack()
    assert packed.weight_type == "float32"
    found = append(packed, packed.new_cache(1, 16), 0, ids)[-1]
    expected = logits_after(weights, packed.config, ids.tolist())
    torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5)


def test_bytes_are_those_of_values_and_scales():
    model = small_model(padded_vocab_size=40)
    plain = dict(model.named_parameters())
    linear = [w for name, w in plain.items() if name.endswith("proj.weight") or name == "lm_head.weight"]
    rest = sum(4 * w.numel() for w in plain.values()) - sum(4 * w.numel() for w in linear)
    assert model.quantise().weight_bytes == rest + sum(w.numel() + 4 * len(w) for w in linear)
    cut = model.cut_head()
    assert cut.quantised is not None
    assert cut.quantised.values.shape == (23, 32)
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
    assert torch.equal(cut(x), functional.linear(x, model.lm_head.quantised.dequantised()[:23]))
