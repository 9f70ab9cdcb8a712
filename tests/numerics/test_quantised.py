"""Weights in few bits: rounding by its definition, and what the transformer makes of them."""

import numpy as np
import pytest
import torch

from oracles import Transformer
from oracles.quantisation import FORMATS, INT4, INT8, INT8_DYNAMIC, Format, QuantisedWeight, bytes_each
from oracles.quantisation.quantised import _whole_product
from tests.reference.transformer import logits_after
from tests.support.models.scoring import append
from tests.support.models.tiny_models import FAMILIES, small_model

TINY = float(np.finfo(np.float32).tiny)
# float32 rounds the quotient, the scale and the product: 127 * 3 * 2^-24 of a scale at most. A bfloat16 scale is itself
# rounded by up to 2^-8, one of float16 by 2^-11, so that the largest weight may lie beyond the largest number, 7.
SLACK = {"int8": 2.0**-16, "int4": 7 * 2.0**-8, "int8-dynamic": 2.0**-16, "q4_0-int8": 7 * 2.0**-11}
BYTES = {
    "int8": 65 * (47 + 4),
    "int8-dynamic": 65 * (47 + 4),
    "int4": 65 * (47 + 2 * 4),
    "q4_0-int8": 65 * (47 + 2 * 4),
}
EXACT = ("int8", "int4")  # formats of which a product is one with float32 weights
each_format = pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)


def a_weight(dtype: torch.dtype = torch.float32, spread: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    rows = torch.exp(spread * torch.randn(65, 1, generator=generator))
    return (rows * torch.randn(65, 47, generator=generator)).to(dtype)


def spread(scales: np.ndarray, inputs: int, format: Format) -> np.ndarray:
    """Return ``[out, in]`` scales from ``[out, groups]``."""
    return np.repeat(scales, format.group or inputs, axis=1)[:, :inputs]


def defined_scales(wide: np.ndarray, format: Format) -> np.ndarray:
    """Return ``[out, groups]`` scales, group by group."""
    size = format.group or wide.shape[1]
    groups = [np.abs(wide[:, at : at + size]).max(axis=1) for at in range(0, wide.shape[1], size)]
    scales = np.stack(groups, axis=1) / np.float32(2 ** (format.bits - 1) - 1)
    least = torch.finfo(format.scales).tiny
    return torch.from_numpy(scales).clamp(min=least).to(format.scales).float().numpy()


def errors(weight: torch.Tensor, made: QuantisedWeight) -> torch.Tensor:
    """Return |w - w'| in scales."""
    scales = torch.from_numpy(spread(made.scales.double().numpy(), weight.shape[1], made.format))
    return (weight.double() - made.values.double() * scales).abs() / scales


@each_format
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("spreading", [0.0, 3.0])
def test_no_weight_moves_by_more_than_half_a_scale(spreading, dtype, format):
    weight = a_weight(dtype, spreading)
    made = QuantisedWeight.of(weight, "layer", format)
    wide, scales = weight.float().numpy(), defined_scales(weight.float().numpy(), format)
    each, largest = spread(scales, 47, format), 2 ** (format.bits - 1) - 1
    assert np.array_equal(made.scales.numpy(), scales)
    assert np.array_equal(made.values.numpy(), np.clip(np.rint(wide / each), -largest, largest).astype(np.int8))
    assert errors(weight, made).max() <= 0.5 + SLACK[format.name]
    reached = made.values.abs().amax(dim=1) == largest
    assert (reached | (made.scales.amin(dim=1) == torch.finfo(format.scales).tiny)).all()
    assert reached.float().mean() > 0.9
    assert np.array_equal(made.dequantise().numpy(), made.values.numpy().astype(np.float32) * each)
    assert made.bytes == BYTES[format.name]


@each_format
@pytest.mark.parametrize("change", [1.1, 0.9])
def test_the_bound_would_notice_another_scale(change, format):
    weight = a_weight()
    made = QuantisedWeight.of(weight, "layer", format)
    spoilt = QuantisedWeight(made.values, made.scales * change, format)
    assert errors(weight, spoilt).max() > 0.5 + SLACK[format.name]


def test_a_group_has_a_scale_of_its_own_and_the_last_may_be_short():
    weight = torch.cat([torch.full((1, 32), 7.0), torch.full((1, 32), 0.07), torch.full((1, 3), -700.0)], dim=1)
    made = QuantisedWeight.of(weight, "layer", INT4)
    assert made.scales.shape == (1, 3)
    assert made.values.tolist() == [[7] * 64 + [-7] * 3]
    assert torch.equal(made.scales, (weight[:, [0, 32, 64]].abs() / 7).bfloat16().float())
    assert (QuantisedWeight.of(weight, "layer", INT8).values[0, 32:64] == 0).all(), "one scale for all would lose them"


def test_bytes_of_a_weight_count_the_scales_of_groups():
    assert {name: bytes_each(name) for name in ("float32", "bfloat16", *FORMATS)} == {
        "float32": 4, "bfloat16": 2, "int8": 1, "int4": 0.5 + 2 / 32, "int8-dynamic": 1, "q4_0-int8": 0.5 + 2 / 32,
    }  # fmt: skip


def by_hand(made: QuantisedWeight, x: np.ndarray) -> np.ndarray:
    """Return the product of rows in whole numbers, row by row, in exact integers."""
    rows = []
    for row in x:
        scale = max(np.abs(row).max() / np.float32(127), np.float32(TINY))
        sums = made.values.numpy().astype(np.int64) @ np.rint(row / scale).astype(np.int64)
        rows.append(sums.astype(np.float32) * scale * made.scales.numpy()[:, 0])
    return np.stack(rows)


def test_rounded_inputs_have_a_scale_a_row_and_exact_sums():
    made = QuantisedWeight.of(torch.randn(65, 3000, generator=torch.Generator().manual_seed(5)), "layer", INT8_DYNAMIC)
    x = torch.randn(9, 3000, generator=torch.Generator().manual_seed(6)) * torch.logspace(-30, 30, 9)[:, None]
    x[3], x[4] = 0.0, 1e-42
    x[5] = 1.0  # all inputs are the largest number: sums beyond 2^24, which float32 would not add up
    made.values[7], made.values[8, ::2] = 127, -127
    found = made.product(x)
    assert np.array_equal(found.numpy(), by_hand(made, x.numpy()))
    assert found[5, 7] == np.float32(np.float32(3000 * 127 * 127) * np.float32(1 / 127)) * made.scales[7]
    assert torch.equal(made.product(x[2:3])[0], found[2]), "a row does not depend on others"
    assert torch.equal(made.product(x.view(3, 3, 3000)), found.view(3, 3, 65))
    exact = x.double() @ made.dequantise().double().T
    assert not torch.equal(found, exact.float())
    bound = 0.5 / 127 * x.double().abs().amax(dim=1, keepdim=True) * made.dequantise().double().abs().sum(dim=1)
    assert ((found - exact).abs() <= 1.001 * bound + 1e-37).all()


def test_halves_of_inputs_go_to_even():
    made = QuantisedWeight(torch.eye(6, dtype=torch.int8), torch.ones(6, 1), INT8_DYNAMIC)
    product = made.product(torch.tensor([[127.0, 0.5, 1.5, -2.5, -0.5, 126.5]]))
    assert product.tolist() == [[127, 0, 2, -2, 0, 126]]


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite_give_nan(special):
    made, x = QuantisedWeight.of(a_weight(), "layer", INT8_DYNAMIC), torch.ones(3, 47)
    x[1, 5] = special
    found = made.product(x)
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()


def test_halves_go_to_even_and_signs_are_kept():
    made = QuantisedWeight.of(torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0]]), "layer")
    assert made.scales.tolist() == [[1.0]]
    assert made.values.tolist() == [[127, 0, 2, 2, 0, -2, -127]]


def test_rows_of_zeros_and_of_the_smallest_numbers_divide_by_no_zero():
    weight = torch.tensor([[0.0, -0.0, 0.0], [1e-45, -1e-45, 0.0], [3e-37, -1e-38, 1e-40], [2e-36, 0.0, 1e-36]])
    made = QuantisedWeight.of(weight, "layer")
    assert made.values[:2].count_nonzero() == 0
    assert made.scales.tolist()[:3] == [[TINY]] * 3
    assert made.values[3].tolist() == [127, 0, 64]
    assert errors(weight, made).max() <= 0.5 + SLACK["int8"]


# Of the largest float a 7th, as bfloat16, is small enough.
UNFIT = [(format, special) for format in FORMATS for special in (torch.nan, -torch.inf)]
UNFIT += [(format, torch.finfo(torch.float32).max) for format in ("int8", "int8-dynamic")]
UNFIT += [("q4_0-int8", 7 * 65520.0)]  # float16 ends at 65504


@pytest.mark.parametrize(("format", "special"), UNFIT)
def test_weights_that_have_no_value_are_refused_by_the_layers_name(format, special):
    model = small_model()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = special
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.up_proj: a weight is NaN, infinite"):
        model.store(format)


@pytest.mark.parametrize("format", EXACT)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_quantised_transformer_scores_with_what_its_weights_stand_for(family, format):
    model, plain = small_model(**FAMILIES[family]), small_model(**FAMILIES[family])
    tokens = torch.randint(23, (2, 9), generator=torch.Generator().manual_seed(1))
    linear = {name for name, _ in plain.named_parameters() if name.endswith("proj.weight")} | {"lm_head.weight"}
    if plain.config.tie_embeddings:
        linear = linear - {"lm_head.weight"} | {"model.embed_tokens.weight"}
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if name in linear:
                parameter.copy_(QuantisedWeight.of(parameter, name, FORMATS[format]).dequantise())
    assert model.store(format).store(format) is model
    quantised = model(tokens)
    assert model.weight_type == format
    assert torch.equal(quantised, plain(tokens))
    model.dequantise()
    assert model.weight_type == "float32"
    state, expected = model.state_dict(), plain.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert torch.equal(model(tokens), plain(tokens))


@pytest.mark.parametrize("format", EXACT)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_packing_keeps_the_quantised_numbers(family, format):
    model, ids = small_model(**FAMILIES[family]).store(format), torch.arange(12)
    weights, packed = small_model(**FAMILIES[family]).store(format).dequantise().state_dict(), model.pack()
    assert packed.weight_type == "float32"
    found = append(packed, packed.new_cache(1, 16), 0, ids)[-1]
    expected = logits_after(weights, packed.config, ids.tolist())
    torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5)


def of_rounded_inputs(**changes: object) -> Transformer:
    return small_model(**changes).quantise(INT8_DYNAMIC)


@pytest.mark.parametrize("family", FAMILIES)
def test_packing_keeps_layers_that_round_their_inputs(family):
    model, changes = of_rounded_inputs(**FAMILIES[family]), FAMILIES[family] | {"padded_vocab_size": 40}
    ids = torch.randint(23, (1, 12), generator=torch.Generator().manual_seed(1))
    plain, kept = small_model(**FAMILIES[family])(ids)[0].detach(), model(ids)[0].detach()
    assert model.dequantise().weight_type == "int8-dynamic"
    assert torch.equal(model(ids)[0], kept), "no plain weight stands for them"
    packed = model.pack()
    assert (packed.weight_type, packed.bitwise) == ("int8-dynamic", True)
    found = append(packed, packed.new_cache(1, 16), 0, ids[0])
    near, far = (found - kept).abs(), (found - plain).abs()
    assert near.median() < 1e-5 < 1e-3 < far.median()
    padded = of_rounded_inputs(**changes)
    expected, cut = padded(ids)[0].detach(), padded.pack()
    assert cut.lm_head.quantised.values.shape[0] == 23
    assert (append(cut, cut.new_cache(1, 16), 0, ids[0]) - expected).abs().median() < 1e-5


def test_packed_layers_that_round_their_inputs_are_held_in_bytes():
    model, packed = of_rounded_inputs(), of_rounded_inputs().pack()
    assert packed.weight_bytes == model.weight_bytes < small_model().weight_bytes


@each_format
def test_bytes_are_those_of_values_and_scales(format):
    model = small_model(padded_vocab_size=40)
    plain = dict(model.named_parameters())
    linear = [w for name, w in plain.items() if name.endswith("proj.weight") or name == "lm_head.weight"]
    rest = sum(4 * w.numel() for w in plain.values()) - sum(4 * w.numel() for w in linear)
    scales = [4 * len(w) * (1 if format.group is None else -(-w.shape[1] // format.group)) for w in linear]
    assert model.quantise(format).weight_bytes == rest + sum(w.numel() for w in linear) + sum(scales)
    cut = model.cut_head()
    assert cut.quantised is not None
    assert cut.quantised.values.shape == (23, 32)
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
    assert torch.equal(cut(x), model.lm_head.quantised.rows(slice(23)).product(x))


def test_products_of_whole_numbers_are_exact_at_the_edges_of_the_range():
    generator = torch.Generator().manual_seed(2)
    for inputs in (3, 1023, 1025, 2500):
        x, weight = (torch.randint(-127, 128, (5, inputs), generator=generator).to(torch.int8) for _ in range(2))
        x[0], weight[0] = 127, 127
        assert torch.equal(_whole_product(x, weight).long(), x.long() @ weight.long().t())


NO_TYPE = "; choose one of float32, .*int8-dynamic"
NO_FORMAT = "a format has 2 to 8 bits and groups of 1 or more"
REFUSED = {
    "whole numbers of torch": (lambda: small_model().store("int32"), "weight_type is 'int32'" + NO_TYPE),
    "complex numbers": (lambda: small_model().store("complex64"), "weight_type is 'complex64'" + NO_TYPE),
    "a format that is none": (lambda: small_model().store("int3"), "weight_type is 'int3'" + NO_TYPE),
    "two formats": (
        lambda: small_model().store("int8").store("int4"),
        r"proj was quantised to int8: begin with the plain weights",
    ),
    "more bits than int8 has": (lambda: Format("odd", 16), NO_FORMAT),
    "a sign alone": (lambda: Format("odd", 1), NO_FORMAT),
    "groups of nothing": (lambda: Format("odd", 4, 0), NO_FORMAT),
    "parts of several formats": (
        lambda: QuantisedWeight.stack(
            [QuantisedWeight.of(a_weight(), "layer", format) for format in (INT8, INT8_DYNAMIC)]
        ),
        "several formats cannot become one: int8, int8-dynamic",
    ),
    "other activations": (
        lambda: small_model(dtype=torch.bfloat16).quantise(INT8_DYNAMIC).pack(),
        r"int8-dynamic layers take float32 inputs, and the model is torch\.bfloat16",
    ),
    "a packed model": (lambda: small_model().pack().quantise(), "(lm_head|proj) was packed"),
    "a packed model, tied": (lambda: small_model(tie_embeddings=True).pack().quantise(), "(lm_head|proj) was packed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_quantised_is_refused_with_the_reason(name):
    make, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("weight_type", ["bfloat16", "float16", "float32"])
def test_the_type_of_weights_is_that_of_the_linear_layers(weight_type, tied):
    assert small_model(tie_embeddings=tied).store(weight_type).weight_type == weight_type
