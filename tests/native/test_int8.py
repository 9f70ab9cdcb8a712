"""Int8 weights in the native pass: the bits of the float32 numbers that they stand for, whatever the pass."""

import numpy as np
import pytest
import torch

import oracles
from oracles.blocks import Adapter
from oracles.loading import load_trainable
from oracles.native import NativeTransformer
from oracles.quantisation import Quantised
from tests.exact.test_tree_scoring import append, path_to, random_tree, small_model
from tests.native.test_pass import SHAPES, STORAGES, digest, use_build
from tests.reference.transformer import logits_after
from tests.support.backends import needed_native

needed_native()

WIDTHS = (1, 2, 3, 4, 5, 8, 9, 17)


def assert_bits_agree(model: NativeTransformer, plain: NativeTransformer) -> None:
    """All logits are the same bits: prompts by chunks, chains of every width, a batch of trees, greedy chains."""
    found = []
    for oracle in (model, plain):
        generator = torch.Generator().manual_seed(1)
        cache, logits = oracle.new_cache(2, 300), []
        for row, length in enumerate((270, 4)):
            logits.append(append(oracle, cache, row, torch.randint(23, (length,), generator=generator), 100))
        for width in WIDTHS:
            tokens = torch.randint(23, (1, width), generator=generator)
            logits.append(oracle.score(tokens, None, torch.tensor([width]), cache, np.array([1])).logits)
        tokens, parents = torch.randint(23, (2, 12), generator=generator), random_tree(2, 12, generator)
        scores = oracle.score(tokens, parents, torch.tensor([12, 7]), cache, np.arange(2), hidden=(0, 1))
        logits += [scores.logits, *scores.hidden]
        call = tokens[:, :2], torch.tensor([2, 1]), cache, np.arange(2), np.array([5, 3])
        logits += oracle.greedy_chains(*call)
        found.append(logits)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def models(dtype: torch.dtype, **changes: object) -> tuple[NativeTransformer, NativeTransformer]:
    """Return a model that reads int8, and one that reads the float32 numbers."""
    sizes = {"max_context": 512} | changes
    made = [small_model(dtype=dtype, **sizes).quantise() for _ in range(2)]
    return NativeTransformer(made[0]), NativeTransformer(made[1].dequantise())


@pytest.mark.parametrize("storage", STORAGES.values(), ids=STORAGES)
@pytest.mark.parametrize("family", SHAPES)
def test_bits_are_those_of_the_dequantised_weights(family, storage):
    model, plain = models(storage, **SHAPES[family])
    assert (model.weight_type, plain.weight_type) == ("int8", "float32")
    assert model.bitwise
    assert_bits_agree(model, plain)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_change_no_bit(threads):
    model, plain = models(torch.bfloat16, vocab_size=200, intermediate_size=300, tie_embeddings=True)
    torch.set_num_threads(threads)
    try:
        assert_bits_agree(model, plain)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("family", SHAPES)
def test_every_node_scores_as_the_reference_scores_its_own_sequence(family):
    model = small_model(**SHAPES[family]).quantise()
    weights = small_model(**SHAPES[family]).quantise().dequantise().state_dict()
    native, generator = NativeTransformer(model), torch.Generator().manual_seed(1)
    ids, cache = torch.randint(23, (7,), generator=generator), native.new_cache(1, 40)
    append(native, cache, 0, ids, width=3)
    tokens, parents = torch.randint(23, (1, 9), generator=generator), random_tree(1, 9, generator)
    logits = native.score(tokens, parents, torch.tensor([9]), cache, np.array([0])).logits[0]
    for node in (0, 5, 8):
        sequence = ids.tolist() + tokens[0, path_to(parents[0], node)].tolist()
        expected = logits_after(weights, native.config, sequence)
        torch.testing.assert_close(logits[node].double(), expected, rtol=2e-5, atol=2e-5)


def spoilt(part: str) -> NativeTransformer:
    """Return a model in which one layer's scales belong to their neighbours."""
    model = small_model(max_context=512, tie_embeddings=part == "lm_head").quantise()
    layer = model.get_submodule(part)
    layer.quantised = Quantised(layer.quantised.values, layer.quantised.scales.roll(1))
    return NativeTransformer(model)


@pytest.mark.parametrize("part", ["model.layers.0.self_attn.v_proj", "model.layers.1.mlp.up_proj", "lm_head"])
def test_another_columns_scale_is_noticed(part):
    with pytest.raises(AssertionError):
        assert_bits_agree(spoilt(part), models(torch.float32, tie_embeddings=part == "lm_head")[1])


def test_layers_that_are_joined_may_be_stored_differently():
    mixed, plain = small_model(max_context=512), small_model(max_context=512)
    for model in (mixed, plain):
        model.model.layers[0].self_attn.k_proj.quantise("k_proj")
    assert_bits_agree(NativeTransformer(mixed), NativeTransformer(plain.dequantise()))


def test_a_head_behind_an_adapter_is_the_quantised_one():
    model, plain = models(torch.float32)
    adapter, stream = Adapter(model.config, 20), torch.randn(5, 32, generator=torch.Generator().manual_seed(4))
    assert torch.equal(model.read_out(stream), plain.read_out(stream))
    assert torch.equal(model.read_out_behind(adapter)(stream), plain.read_out_behind(adapter)(stream))


@pytest.mark.parametrize("tied", [False, True])
def test_memory_is_a_byte_a_weight_and_a_scale_a_column(tied):
    sizes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 64, "num_kv_heads": 4, "tie_embeddings": tied}
    model = NativeTransformer(small_model(dtype=torch.bfloat16, **sizes).quantise())
    columns = 2 * (3 * 64 + 64 + 2 * 64 + 64) + 64
    assert model.weight_bytes == columns * (64 + 4) + (0 if tied else 64 * 64 * 2) + 5 * 64 * 4


@pytest.mark.parametrize("name", ["code-draft-tiny", "arithmetic"])
def test_load_quantises_for_both_backends(name):
    native, eager = (oracles.load(name, backend=backend, weights="int8") for backend in ("native", "eager"))
    plain = NativeTransformer(load_trainable(name).quantise().dequantise())
    assert (native.backend, native.weight_type) == ("native", "int8")
    assert (eager.backend, eager.weight_type) == ("eager", "float32")
    assert native.weight_bytes < oracles.load(name, backend="native").weight_bytes < eager.weight_bytes
    ids = torch.randint(3, native.vocab_size, (40,), generator=torch.Generator().manual_seed(5))
    logits = [append(oracle, oracle.new_cache(1, 64), 0, ids) for oracle in (native, plain, eager)]
    assert torch.equal(logits[0], logits[1])
    torch.testing.assert_close(logits[0], logits[2], rtol=1e-4, atol=1e-4)
    stored = oracles.load(name, backend="native")
    assert not torch.allclose(append(stored, stored.new_cache(1, 64), 0, ids), logits[0], rtol=1e-3, atol=1e-3)


HASHES = {"llama": "c79589ee49cbe7c2", "gpt2": "b6e793ffc93fbbff", "odd": "f6957d7182c72698"}


@pytest.mark.parametrize("family", HASHES)
def test_logits_have_the_recorded_bits(family):
    assert digest(family, is_int8=True) == HASHES[family]


@pytest.mark.long
@pytest.mark.parametrize("level", ["-O1", "-O3"])
@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_every_build_has_the_recorded_bits(lanes, level, monkeypatch):
    use_build(lanes, level, monkeypatch)
    for family in HASHES:
        assert digest(family, is_int8=True) == HASHES[family], family
    for family in SHAPES:
        assert_bits_agree(*models(torch.float32, **SHAPES[family]))
