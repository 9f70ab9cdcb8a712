"""Weights in few bits in the native pass: the bits of what they stand for, or of products of whole numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from oracles import Transformer
from oracles.checkpoints.loading import load_trainable
from oracles.native import NativeTransformer, bindings
from oracles.native.packed_blocks import is_readable
from oracles.quantisation import FORMATS, INT4, INT8, INT8_DYNAMIC, STORED, WHOLE, Format, QuantisedWeight
from oracles.transformer.blocks import Adapter
from tests.support.backends import needed_native
from tests.support.models.native_models import (
    STORAGES,
    WITH_WIDE,
    assert_alike_but_for_edges,
    assert_bits_agree,
    digest,
    logits_of,
    rows_and_inputs,
    use_build,
)
from tests.support.models.scoring import append, assert_nodes_score_as_the_reference, nodes_unlike_their_paths
from tests.support.models.stored_weights import in_format
from tests.support.models.tiny_models import small_model
from tests.support.pairwise import diagonal, pairwise

needed_native()

EXACT = ("int8", "int4")  # formats of which a product is one with float32 weights
OF_FILES = ("llama", "gpt2", "odd", "wide")  # families whose weights files' formats hold too
each_exact = pytest.mark.parametrize("format", EXACT)
each_rounding = pytest.mark.parametrize("format", ["int8-dynamic", *WHOLE])  # inputs too


def rounded(format: str, dtype: torch.dtype = torch.float32, **changes: object) -> Transformer:
    """Return a model whose weights are of a format; heads that whole numbers meet have a multiple of 16 dimensions."""
    model = small_model(dtype=dtype, **{"max_context": 512, **({"head_dim": 16} if format in WHOLE else {}), **changes})
    return model.store(format) if format in FORMATS else in_format(model, format)


def native(format: str, dtype: torch.dtype = torch.float32, **changes: object) -> NativeTransformer:
    """Return a model that reads them."""
    return NativeTransformer(rounded(format, dtype, **changes))


def models(dtype: torch.dtype, format: str, **changes: object) -> tuple[NativeTransformer, NativeTransformer]:
    """Return a model that reads few bits, and one that reads the float32 numbers."""
    return native(format, dtype, **changes), NativeTransformer(rounded(format, dtype, **changes).dequantise())


@pairwise(
    {"family": tuple(WITH_WIDE), "storage": STORAGES, "format": (*EXACT, *STORED)},
    only=lambda family, storage, format: format in EXACT or (storage == "float32" and family in OF_FILES),
)
def test_bits_are_those_of_the_dequantised_weights(family, storage, format):
    model, plain = models(storage, format, **WITH_WIDE[family])
    assert (model.weight_type, plain.weight_type) == (format, "float32")
    assert model.bitwise
    assert_bits_agree(model, plain)


@pytest.mark.parametrize("format", dict.fromkeys((*FORMATS, *STORED, *WHOLE)))
def test_threads_change_no_bit(format, set_threads):
    changes = {"vocab_size": 200, "intermediate_size": 300, "tie_embeddings": True}
    model = native(format, torch.bfloat16 if format in FORMATS else torch.float32, **changes)
    alone = logits_of(model)
    for number in (2, 3, 7):
        set_threads(number)
        assert all(torch.equal(a, b) for a, b in zip(alone, logits_of(model), strict=True))


# Bits are those of the dequantised weights in every family and format, as the test above tells: each occurs here once.
@diagonal({"family": tuple(WITH_WIDE), "format": EXACT})
def test_every_node_scores_as_the_reference_scores_its_own_sequence(family, format):
    weights = rounded(format, **WITH_WIDE[family]).dequantise().state_dict()
    assert_nodes_score_as_the_reference(native(format, **WITH_WIDE[family]), weights, 2e-5, step=4)


def spoilt(part: str, format: str) -> NativeTransformer:
    """Return a model in which one layer's scales belong to their neighbours."""
    model = rounded(format, tie_embeddings=part == "lm_head")
    layer = model.get_submodule(part)
    layer.quantised = replace(layer.quantised, scales=layer.quantised.scales.roll(1))
    return NativeTransformer(model)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("part", ["model.layers.0.self_attn.v_proj", "model.layers.1.mlp.down_proj", "lm_head"])
def test_another_columns_scale_is_noticed(part, format):
    with pytest.raises(AssertionError):
        assert_bits_agree(spoilt(part, format), native(format, tie_embeddings=part == "lm_head"))


@each_exact
def test_layers_that_are_joined_may_be_stored_differently(format):
    mixed, plain = small_model(max_context=512), small_model(max_context=512)
    for model in (mixed, plain):
        model.model.layers[0].self_attn.k_proj.quantise("k_proj", FORMATS[format])
        model.model.layers[1].mlp.gate_proj.quantise("gate_proj", INT8)
        model.model.layers[1].mlp.up_proj.quantise("up_proj", FORMATS[format])
    assert_bits_agree(NativeTransformer(mixed), NativeTransformer(plain.dequantise()))


def test_a_layer_that_rounds_its_inputs_is_joined_with_its_like_only():
    model, mixed = small_model(), in_format(small_model(hidden_size=64, head_dim=16), "q4_0-int8")
    model.model.layers[0].self_attn.k_proj.quantise("k_proj", INT8_DYNAMIC)
    layer = mixed.model.layers[0].self_attn.k_proj
    layer.quantised = replace(layer.quantised, format=WHOLE["q8_0-int8"])
    for one in (model, mixed):
        with pytest.raises(ValueError, match="cannot be joined with one that does not or is of another format"):
            NativeTransformer(one)


def test_groups_whose_scales_would_exceed_float32_are_read_as_the_numbers_that_they_are():
    mixed, plain = small_model(max_context=512), small_model(max_context=512)
    for model in (mixed, plain):
        with torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight *= 1e37
            model.model.layers[0].mlp.up_proj.weight *= 1e-37
        model.quantise(INT4)
    layer = mixed.model.layers[0].mlp.down_proj.quantised
    assert is_readable(layer)
    assert not is_readable(QuantisedWeight(layer.values, layer.scales * 50, INT4))
    assert_bits_agree(NativeTransformer(mixed), NativeTransformer(plain.dequantise()))


@pytest.mark.parametrize("change", ["scales that bfloat16 does not hold", "a format of one's own"])
def test_what_the_native_pass_does_not_know_is_read_as_the_numbers_that_it_stands_for(change):
    mixed, plain = (small_model(max_context=512).quantise(INT4) for _ in range(2))
    for model in (mixed, plain):
        layer = model.model.layers[0].mlp.down_proj
        old = layer.quantised
        if change == "a format of one's own":
            layer.quantised = QuantisedWeight(old.values, old.scales, Format("mine", 4, 32))
        else:
            layer.quantised = QuantisedWeight(old.values, old.scales * (1 + 2.0**-12), INT4)
        assert not is_readable(layer.quantised)
    native = NativeTransformer(mixed)
    storage = native.native._layers[0].down.storage
    assert storage == bindings.STORAGES["float32"]
    assert_bits_agree(native, NativeTransformer(plain.dequantise()))


@pytest.mark.parametrize("format", FORMATS)
def test_a_head_behind_an_adapter_is_the_quantised_one(format):
    stream = torch.randn(5, 32, generator=torch.Generator().manual_seed(4))
    model, plain = native(format), rounded(format).dequantise().eval()
    adapter = Adapter(model.config, 20)
    with torch.no_grad():
        adapter.mlp.down_proj.weight += 0.3
    behind = model.read_out_behind(adapter)(stream)
    assert not torch.equal(behind, model.read_out(stream))
    with torch.no_grad():
        torch.testing.assert_close(model.read_out(stream), plain.read_out(stream))
        torch.testing.assert_close(behind, plain.read_out_behind(adapter)(stream), rtol=1e-5, atol=1e-5)


# Bytes of a block of 32 columns and 64 inputs, scales and minima included.
OF_BLOCK = {
    **{"int8": 32 * (64 + 4), "int8-dynamic": 32 * (64 + 4 + 4), "int4": 64 * 18},
    **{"q8_0": 64 * 34, "q4_0": 64 * 18, "q4_1": 64 * 20},
}


@pytest.mark.parametrize("format", dict.fromkeys((*FORMATS, *STORED, *WHOLE)))
def test_memory_is_that_of_few_bits_and_scales(format):
    sizes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 64, "num_kv_heads": 4}
    blocks = (2 * (3 * 64 + 64 + 2 * 64 + 64) + 64) // 32
    for tied in (False, True):
        rest = (0 if tied else 64 * 64 * 2) + 5 * 64 * 4
        found = native(format, torch.bfloat16, tie_embeddings=tied, **sizes).weight_bytes
        assert found == blocks * OF_BLOCK[format.removesuffix("-int8")] + rest


@pytest.mark.parametrize("format", FORMATS)
def test_load_quantises_for_both_backends(format):
    name = "code-draft-tiny"
    model, eager = (oracles.load(name, backend=backend, weights=format) for backend in ("native", "eager"))
    assert (model.backend, model.weight_type) == ("native", format)
    assert (eager.backend, eager.weight_type) == ("eager", "float32" if format in EXACT else format)
    assert model.bitwise
    stored = oracles.load(name, backend="native")
    assert model.weight_bytes < stored.weight_bytes
    ids = torch.randint(3, model.vocab_size, (40,), generator=torch.Generator().manual_seed(5))
    found, expected, others = (append(oracle, oracle.new_cache(1, 64), 0, ids) for oracle in (model, eager, stored))
    if format in EXACT:
        plain = NativeTransformer(load_trainable(name).store(format).dequantise())
        assert torch.equal(found, append(plain, plain.new_cache(1, 64), 0, ids))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert agreement(found, expected) > 2 * agreement(found, others)


def agreement(found: Tensor, expected: Tensor) -> float:
    """Return the inverse of the median distance."""
    return 1 / (1e-9 + float((found - expected).abs().median()))


# ---- Rounded inputs ----


@pytest.mark.parametrize("hidden", [16, 20, 47, 64])
@pytest.mark.parametrize("rows", [1, 3, 17, 40])
def test_a_product_has_the_bits_of_its_definition(rows, hidden):
    changes = {"hidden_size": hidden, "head_dim": 16, "head_bias": True, "vocab_size": 75}
    plain, given = rounded("int8-dynamic", **changes), rounded("int8-dynamic", **changes)
    with torch.no_grad():
        given.model.norm.weight *= torch.linspace(0.01, 3, hidden)
    stream, inputs = rows_and_inputs(rows, given)
    model = NativeTransformer(given)
    expected = plain.lm_head(inputs).detach()
    assert torch.equal(model.read_out(stream), expected)
    scales = (inputs.abs().amax(dim=1, keepdim=True).double() / 127).float()
    numbers = (inputs / scales).numpy().round().astype(np.int64)
    sums = numbers @ plain.lm_head.quantised.values.numpy().astype(np.int64).T
    by_hand = sums.astype(np.float32) * scales.numpy() * plain.lm_head.quantised.scales.numpy().T
    assert np.array_equal(expected.numpy(), by_hand + plain.lm_head.bias.detach().numpy())


@pytest.mark.parametrize("special", [torch.nan, -torch.inf])
def test_a_norm_that_is_not_finite_gives_nan(special):
    # The norm of a layer passes values on: a bias alone takes part in what reaches the head.
    model = rounded("int8-dynamic", **WITH_WIDE["gpt2"])
    with torch.no_grad():
        model.model.norm.weight[5], model.model.norm.bias[7] = special, 0.25
    stream = torch.randn(20, 32, generator=torch.Generator().manual_seed(3))
    assert NativeTransformer(model).read_out(stream).isnan().all()


@pytest.mark.parametrize("special", [torch.nan, -torch.inf])
@each_rounding
def test_every_row_has_a_scale_of_its_own_and_one_that_is_not_finite_gives_nan(special, format):
    model, generator = native(format), torch.Generator().manual_seed(3)
    stream = torch.randn(40, 32, generator=generator) * torch.logspace(-4, 4, 40)[:, None]
    expected = model.read_out(stream)
    assert all(torch.equal(model.read_out(row[None])[0], other) for row, other in zip(stream, expected, strict=True))
    stream[[0, 31], [3, 31]] = special
    found = model.read_out(stream)
    assert found[[0, 31]].isnan().all()
    others = [row for row in range(40) if row not in (0, 31)]
    assert torch.equal(found[others], expected[others])


@each_rounding
def test_rows_of_zeros_and_of_the_smallest_numbers_divide_by_no_zero(format):
    model = rounded(format, head_bias=True)
    with torch.no_grad():
        model.model.norm.weight *= 1e-40
    bias, native_model = model.lm_head.bias.detach().clone(), NativeTransformer(model)
    stream = torch.randn(3, 32, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(native_model.read_out(stream), bias.expand(3, -1), rtol=0, atol=1e-30)
    assert torch.equal(native_model.read_out(torch.zeros(1, 32))[0], bias)


# The formats of files round inputs where heads have 16 dimensions or more.
IN_PASSES = [("int8-dynamic", family) for family in WITH_WIDE]
IN_PASSES += [(format, family) for format in WHOLE for family in ("llama", "gpt2", "wide")]


@pytest.mark.parametrize(("format", "family"), IN_PASSES)
def test_rounded_inputs_score_as_the_eager_pass_does(format, family):
    model, eager = native(format, **WITH_WIDE[family]), rounded(format, **WITH_WIDE[family])
    ids = torch.randint(23, (1, 40), generator=torch.Generator().manual_seed(6))
    found, expected = append(model, model.new_cache(1, 128), 0, ids[0]), eager(ids)[0].detach()
    eager.keeps_bits = lambda: True  # that it does is for tests/numerics to say
    packed = eager.pack()
    assert packed.weight_type == model.weight_type == format
    assert model.bitwise
    for other in (expected, append(packed, packed.new_cache(1, 128), 0, ids[0])):
        assert_alike_but_for_edges(found, other)


@pytest.mark.parametrize(("format", "family"), IN_PASSES)
def test_rounded_inputs_make_bits_that_depend_on_the_path_alone(format, family):
    assert nodes_unlike_their_paths(native(format, **WITH_WIDE[family])) == []


# ---- The same bits everywhere ----

HASHES = {
    "int8": {"llama": "c79589ee49cbe7c2", "gpt2": "b6e793ffc93fbbff", "odd": "f6957d7182c72698"},
    "int4": {"llama": "0d1153835d876597", "gpt2": "8222a2fc953867cd", "odd": "2c0eb27d813425ea"},
    "int8-dynamic": {"llama": "c03ac6f3e2081f8d", "gpt2": "54fb6b474b3cda9e", "odd": "30c2116293427df9"},
    "q8_0": {"llama": "bb801ff28d3da37c"},
    "q4_0": {"llama": "065e65f820e82855"},
    "q4_1": {"llama": "cec154dbd722c0a0"},
    "q8_0-int8": {"llama": "1ec79e5b9e7b85e8"},
    "q4_0-int8": {"llama": "3e529bf7633f8768"},
    "q4_1-int8": {"llama": "cd6d0b9b298d35eb"},
}
RECORDED = [(format, family, found) for format, hashes in HASHES.items() for family, found in hashes.items()]


@pytest.mark.parametrize(("format", "family", "recorded"), RECORDED)
def test_logits_have_the_recorded_bits(format, family, recorded):
    assert digest(family, format) == recorded


def assert_recorded() -> None:
    for format, family, recorded in RECORDED:
        assert digest(family, format) == recorded, (format, family)


@pytest.mark.long
@pytest.mark.parametrize("level", ["-O1", "-O3"])
@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_every_build_has_the_recorded_bits(lanes, level, monkeypatch):
    use_build(lanes, level, monkeypatch)
    assert_recorded()
    for family in WITH_WIDE:
        for format in EXACT:
            assert_bits_agree(*models(torch.float32, format, **WITH_WIDE[family]))
        test_rounded_inputs_make_bits_that_depend_on_the_path_alone("int8-dynamic", family)
    for rows in (1, 3, 17):
        test_a_product_has_the_bits_of_its_definition(rows, 47)


@pytest.mark.long
def test_a_processor_without_instructions_for_bytes_has_the_recorded_bits(monkeypatch):
    use_build(16, "-O3", monkeypatch, "-mno-avx512vnni")
    assert_recorded()
