"""Weights as GGUF files hold them in the native pass: in float arithmetic, and in products of whole numbers."""

import numpy as np
import pytest
import torch

from oracles.native import NativeTransformer
from oracles.quantisation import Q4_1, Q8_0, STORED, WHOLE, QuantisedWeight
from oracles.quantisation.quantised import fused_multiply_add
from oracles.transformer.linear import Linear, round_inputs
from tests.reference import whole_numbers
from tests.support.backends import needed_native
from tests.support.models.native_models import WITH_WIDE, assert_bits_agree, rows_and_inputs
from tests.support.models.stored_weights import in_format, rounded_to_stored
from tests.support.models.tiny_models import small_model

needed_native()

each_whole = pytest.mark.parametrize("format", WHOLE)


@each_whole
@pytest.mark.parametrize(("rows", "hidden"), [(1, 32), (2, 47), (3, 64), (8, 96), (9, 20), (17, 64)])
def test_a_product_of_whole_numbers_has_the_bits_of_its_definition(rows, hidden, format):
    changes = {"hidden_size": hidden, "head_dim": 16, "vocab_size": 39}
    plain, given = (in_format(small_model(max_context=512, **changes), format) for _ in range(2))
    with torch.no_grad():
        given.model.norm.weight *= torch.linspace(0.01, 3, hidden)
    stream, inputs = rows_and_inputs(rows, given)
    found = NativeTransformer(given).read_out(stream)
    weight = plain.lm_head.quantised
    assert torch.equal(found, plain.lm_head(inputs).detach()), "the definition in torch"
    minima = None if weight.minima is None else weight.minima.numpy()
    for row in range(0, rows, 4):
        by_hand = whole_numbers.product(inputs[row].numpy(), weight.values.numpy(), weight.scales.numpy(), minima, 32)
        assert found[row].tolist() == [float(one) for one in by_hand], "rational arithmetic"


@each_whole
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_the_largest_numbers_are_exact(sign, format):
    # Pairs of products of bytes, 127 * 128 and more, exceed 16 bits.
    weight = in_format(small_model(hidden_size=64, head_dim=16), format).lm_head.quantised
    lowest = 0 if weight.format.minima else -weight.format.largest - 1
    values = torch.where(torch.arange(23)[:, None] % 2 == 0, lowest, weight.format.largest).expand(-1, 64)
    whole = QuantisedWeight(values.to(torch.int8), torch.ones_like(weight.scales), weight.format, weight.minima)
    model = in_format(small_model(hidden_size=64, head_dim=16), format)
    model.lm_head = Linear.holding(whole, None)
    with torch.no_grad():
        model.model.norm.weight.fill_(1)
    # A row of equal numbers: all of them are rounded to 127 times their scale.
    inputs = torch.full((1, 64), sign * 3.0)
    expected = whole.product(inputs / (9 + model.config.norm_eps) ** 0.5)
    exact = sign * 64.0 * values[:, 0].float()
    bare = expected[0] - (0 if weight.minima is None else sign * 32 * weight.minima.sum(dim=1))
    torch.testing.assert_close(bare, exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(NativeTransformer(model).read_out(inputs), expected, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("format", STORED)
def test_layers_that_are_joined_may_be_stored_differently(format):
    mixed, plain = small_model(max_context=512), small_model(max_context=512)
    for model in (mixed, plain):
        attention = model.model.layers[0].self_attn
        for layer, name in ((attention.k_proj, format), (attention.v_proj, "q8_0")):
            layer.quantised, layer.weight = rounded_to_stored(layer.weight, STORED[name]), None
    assert_bits_agree(NativeTransformer(mixed), NativeTransformer(plain.dequantise()))


def test_whole_numbers_of_heads_that_part_groups_are_refused():
    model = in_format(small_model(**WITH_WIDE["odd"]), "q4_1-int8")
    with pytest.raises(ValueError, match="heads whose size is no multiple of 16"):
        NativeTransformer(model)


def test_only_weights_of_these_formats_have_products_of_whole_numbers():
    told = r"q_proj: products of whole numbers need weights stored as q8_0, q4_0, q4_1, .* give weights='q4_0-int8'"
    with pytest.raises(ValueError, match=told):
        round_inputs(small_model())


def test_a_model_says_whether_its_products_are_of_whole_numbers():
    whole, plain = (NativeTransformer(in_format(small_model(head_dim=16), name)) for name in ("q4_1-int8", "q4_1"))
    assert ", products of whole numbers, bitwise)" in repr(whole)
    assert "products" not in repr(plain)


def test_fused_multiply_adds_are_rounded_once():
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal(4000).astype(np.float32) for _ in range(2))
    c = (-a.astype(np.float64) * b + draw.standard_normal(4000) * 2.0 ** draw.integers(-60, 0, 4000)).astype(np.float32)
    found = fused_multiply_add(*(torch.from_numpy(one) for one in (a, b, c))).tolist()
    numbers = (map(whole_numbers.exact, three) for three in zip(a, b, c, strict=True))
    exact = (x * y + z for x, y, z in numbers)
    assert found == [float(whole_numbers.nearest(one)) for one in exact]
    # In float64 the sum is a tie of float32; what float64 drops decides.
    tie = fused_multiply_add(torch.tensor([2.0**-40]), torch.tensor([2.0**-40]), torch.tensor([1.0]))
    assert tie.tolist() == [1.0]


@pytest.mark.parametrize("format", [Q8_0, Q4_1], ids=lambda format: format.name)
def test_scales_that_are_subnormal_halves_are_read_exactly(format):
    model = in_format(small_model(hidden_size=64, head_dim=16), format.name)
    old = model.lm_head.quantised
    tiny = torch.full_like(old.scales, 2.0**-24)
    minima = None if old.minima is None else torch.full_like(old.minima, -(2.0**-23))
    model.lm_head.quantised = QuantisedWeight(old.values, tiny, format, minima)
    plain = in_format(small_model(hidden_size=64, head_dim=16), format.name)
    plain.lm_head.quantised = model.lm_head.quantised
    stream = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    found = NativeTransformer(model).read_out(stream)
    assert torch.equal(found, NativeTransformer(plain.dequantise()).read_out(stream))
    assert found.abs().min() > 0
