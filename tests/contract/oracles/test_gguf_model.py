"""GGUF files as oracles: what they hold is what is scored."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import oracles
from experiments.harness.findings.model_shapes import bytes_per_weight, model_shape, weight_types
from oracles import Transformer
from oracles.checkpoints.chat_files import EndsBeyond
from oracles.checkpoints.gguf import WideningWarning, load_gguf
from oracles.checkpoints.loading import checkpoint_folder, load, load_tokenizer, load_trainable
from oracles.native import NativeTransformer
from oracles.transformer.config import RopeScaling
from oracles.transformer.linear import Linear, round_inputs
from oracles.transformer.rotary import inverse_frequencies, yarn_magnitude
from tests.support.models.gguf_files import CHARACTERS, FAMILIES, TOKENS, Kind, family_model, tokenizer_keys, write_gguf
from tests.support.pairwise import pairwise

IDS = torch.tensor([[5, 9, 200, 31, 7, 7, 120, 64, 3, 250]])
CPU = torch.device("cpu")
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
STORED = ["Q8_0", "Q4_0", "Q4_1"]


def logits(model: Transformer) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS)


@pairwise({"family": (*FAMILIES,), "kind": (*FLOATS, *STORED), "tied": {"untied": False, "tied": True}})
def test_a_file_holds_the_model_that_was_written(family, kind, tied, tmp_path):
    model = family_model(family, tie_embeddings=tied)
    path = write_gguf(tmp_path / "model.gguf", model, family, Kind[kind])
    found = load_trainable(path)
    assert found.config == model.config
    state = found.state_dict()
    assert state.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert torch.equal(state[name].float(), parameter), name
    assert torch.equal(logits(found), logits(model))


def test_biases_of_llama_are_read_in_the_order_of_their_rows(tmp_path):
    model = family_model("llama", qkv_bias=True, attn_out_bias=True, mlp_bias=True)
    found = load_trainable(write_gguf(tmp_path / "model.gguf", model))
    assert found.config == model.config
    assert torch.equal(logits(found), logits(model))


@pytest.mark.parametrize("kind", STORED)
def test_whole_numbers_stay_as_they_are_stored(kind, tmp_path):
    path = write_gguf(tmp_path / "model.gguf", family_model("llama", tie_embeddings=True), kind=Kind[kind])
    model = load_gguf(path, CPU)
    assert model.weight_type == kind.lower()
    assert model.lm_head is not None
    assert model.lm_head.quantised is not None
    assert torch.equal(model.lm_head.quantised.dequantise(), model.model.embed_tokens.weight)
    assert {str(p.dtype) for p in model.parameters()} == {"torch.float32"}


def test_a_tied_model_may_have_an_output_of_its_own(tmp_path):
    def kinds(name):
        return {"token_embd.weight": Kind.Q8_0, "output.weight": Kind.Q4_0}.get(name, Kind.Q4_1)

    model = family_model("llama", tie_embeddings=False)
    assert model.lm_head is not None
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
    found = load_gguf(write_gguf(tmp_path / "model.gguf", model, kind=kinds), CPU)
    assert not found.config.tie_embeddings
    assert found.lm_head is not None
    assert found.lm_head.quantised is not None
    assert found.lm_head.quantised.format.name == "q4_0"
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    assert torch.equal(logits(found.dequantise()), logits(model))


def test_a_weight_of_a_file_of_several_types_takes_their_mean(tmp_path):
    for kind, of_head in ((Kind.Q8_0, 34 / 32), (Kind.F16, 2)):
        model = family_model("llama", tie_embeddings=True)
        types = {"token_embd.weight": kind}
        oracle = load(write_gguf(tmp_path / "model.gguf", model, kind=lambda name, of=types: of.get(name, Kind.Q4_1)))
        shape = model_shape(model.config, 1)
        norms = 4 * sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 1)
        wanted = of_head * shape.head_weights + 20 / 32 * shape.layer_weights + norms
        assert bytes_per_weight(oracle) == pytest.approx(wanted / shape.weight_bytes)
    assert weight_types(oracle) == {"float16", "q4_1"}
    assert bytes_per_weight(load("code-draft-tiny", "float64")) == 8


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("kind", ["F32", "BF16", *STORED])
def test_scores_have_the_bits_of_the_float32_weights(kind, backend, tmp_path):
    path = write_gguf(tmp_path / "model.gguf", family_model("llama", tie_embeddings=True), kind=Kind[kind])
    found, plain = load(path, backend=backend), load_trainable(path, dtype="float32")
    assert {str(p.dtype) for p in plain.parameters()} == {"torch.float32"}
    assert found.bitwise
    other = NativeTransformer(plain) if backend == "native" else plain.eval().pack()
    assert torch.equal(scored(found, IDS), scored(other, IDS))


def scored(oracle, ids):
    cache = oracle.new_cache(1, 32)
    return oracle.score(ids, None, torch.tensor([ids.shape[1]]), cache, np.array([0])).logits


def test_padding_rows_and_the_tokenizer_come_along(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", family_model("llama"), tokenizer=tokenizer_keys())
    oracle = load(path)
    assert oracle.vocab_size == len(TOKENS) < 288
    assert oracle.eos_ids == (0, 1)
    beyond = tokenizer_keys(eos_token_id=999, eot_token_id=None)
    with pytest.warns(EndsBeyond, match=r"no output ends with what .*beyond\.gguf names as 'eos_token_id': \[999\]"):
        assert load(write_gguf(tmp_path / "beyond.gguf", family_model("llama"), tokenizer=beyond)).eos_ids == ()
    assert oracle.tokenizer.encode("the <|end|>").ids == load_tokenizer(path).encode("the <|end|>").ids
    assert scored(oracle, IDS).shape[-1] == len(TOKENS)
    assert CHARACTERS[0] in oracle.tokenizer.get_vocab()


def test_a_file_is_known_by_its_first_bytes_too(tmp_path):
    path = write_gguf(tmp_path / "weights.bin", family_model("llama"))
    assert load(path).vocab_size == 288
    assert load(str(path), max_context=16).max_context == 16
    (tmp_path / "text.gguf").write_text("no weights")
    with pytest.raises(ValueError, match=r"text.gguf: it begins with b'no w'"):
        load(tmp_path / "text.gguf")


@pytest.mark.parametrize("weights", ["bfloat16", "float16", "int8", "int4", "int8-dynamic", "q4_0-int8"])
def test_stored_weights_may_be_rounded_once_more(weights, tmp_path):
    path = write_gguf(tmp_path / "model.gguf", family_model("llama", tie_embeddings=True), kind=Kind.Q4_1)
    found, plain = load(path, weights=weights), NativeTransformer(load_trainable(path).store(weights))
    assert found.weight_type == weights
    assert torch.equal(scored(found, IDS), scored(plain, IDS))


def test_products_of_whole_numbers_are_asked_for(tmp_path):
    model = family_model("llama", tie_embeddings=True)
    path = write_gguf(tmp_path / "model.gguf", model, kind=Kind.Q4_1)
    whole = load(path, backend="eager", arithmetic="int8")
    assert whole.weight_type == "q4_1-int8"
    expected = load_gguf(path, CPU)
    round_inputs(expected)
    expected.eval().pack()
    assert torch.equal(scored(whole, IDS), scored(expected, IDS))
    floats = scored(load(path, backend="eager", arithmetic="float32"), IDS)
    assert torch.equal(floats, scored(load(path, backend="eager"), IDS))
    off = (scored(whole, IDS) - floats).abs().max()
    assert 0 < off < 0.2 * floats.abs().max()


def test_products_of_whole_numbers_have_the_same_bits_natively(tmp_path):
    for kind in STORED:
        path = write_gguf(tmp_path / "model.gguf", family_model("llama", tie_embeddings=True), kind=Kind[kind])
        native, eager = (load(path, backend=backend, arithmetic="int8") for backend in ("native", "eager"))
        assert native.weight_type == f"{kind.lower()}-int8"
        torch.testing.assert_close(scored(native, IDS), scored(eager, IDS), rtol=1e-3, atol=1e-3)


def test_the_chat_template_of_a_file_is_the_oracles(tmp_path):
    source = "{% for m in messages %}{{ m['content'] + eos_token }}{% endfor %}"
    tokenizer = tokenizer_keys(eos_token_id=1, eot_token_id=None)
    general = {"tokenizer.chat_template": source}
    model = family_model("llama")
    path = write_gguf(tmp_path / "model.gguf", model, tokenizer=tokenizer, general=general)
    for backend in ("native", "eager"):
        oracle = load(path, backend=backend)
        assert oracle.chat_template is not None
        assert (oracle.chat_template.source, oracle.chat_template.name) == (source, "model.gguf")
        assert oracle.eos_ids == (1,)
    path = write_gguf(tmp_path / "other.gguf", model, tokenizer=tokenizer, general={"tokenizer.chat_template": "{% if"})
    with pytest.raises(ValueError, match=r"other\.gguf: 'tokenizer\.chat_template': "):
        load(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"arithmetic": "int4"}, "arithmetic is 'int4'; choose one of 'float32', 'int8', or None"),
        ({"arithmetic": "int8", "dtype": "bfloat16"}, "arithmetic='int8' needs float32 .* dtype is 'bfloat16'"),
        ({"arithmetic": "int8", "device": "cuda"}, "on a CPU, and device is 'cuda': give"),
        ({"arithmetic": "int8", "weights": "int4"}, "not weights='int4': leave one of them out"),
        ({"arithmetic": "float32", "weights": "int8-dynamic"}, "has products of whole numbers"),
    ],
)
def test_an_arithmetic_that_contradicts_is_refused(options, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        load("code-draft", **options)


def test_float_products_are_named_in_any_dtype(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", family_model("llama"), kind=Kind.Q8_0)
    asked, plain = (load(path, dtype="bfloat16", arithmetic=arithmetic) for arithmetic in ("float32", None))
    assert torch.equal(scored(asked, IDS), scored(plain, IDS))


def test_an_arithmetic_needs_weights_of_a_file(tmp_path):
    with pytest.raises(ValueError, match=r"code-draft: arithmetic='int8' cannot be had: .*q_proj"):
        load("code-draft", arithmetic="int8", backend="eager")
    path = write_gguf(tmp_path / "model.gguf", family_model("llama"), kind=Kind.F16)
    with pytest.raises(ValueError, match=r"model.gguf: arithmetic='int8' cannot be had: .*stored as q8_0, q4_0, q4_1"):
        load(path, arithmetic="int8", backend="eager")


def test_layers_that_are_read_as_one_need_one_type_for_products_of_whole_numbers(tmp_path):
    several = {
        "attn_v": "self_attn has q_proj q4_0, k_proj q4_0, v_proj q8_0: they are read as one",
        "ffn_up": "mlp has gate_proj q4_0, up_proj q8_0: they are read as one",
    }
    for other, told in several.items():
        path = write_gguf(
            tmp_path / "model.gguf",
            family_model("llama"),
            kind=lambda name, other=other: Kind.Q8_0 if other in name else Kind.Q4_0,
        )
        with pytest.raises(ValueError, match=rf"gguf: arithmetic='int8' cannot be had: model\.layers\.0\.{told}"):
            load(path, arithmetic="int8", backend="native")
    # Torch multiplies by gates one after the other.
    assert load(path, arithmetic="int8", backend="eager").weight_type == "q4_0-int8"


def test_frequencies_of_llama_3_come_as_factors(tmp_path):
    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 32)
    model = family_model("llama")
    scaled = Transformer(replace(model.config, rope_scaling=scaling), seed=None)
    scaled.load_state_dict(model.state_dict())
    factors = inverse_frequencies(model.config) / inverse_frequencies(scaled.config)
    assert factors.max() == pytest.approx(8.0)
    extra = {"rope_freqs.weight": factors.float().numpy()}
    found = load_trainable(write_gguf(tmp_path / "model.gguf", model, extra=extra))
    assert found.config.rope_scaling == RopeScaling("factors", 1.0, factors=tuple(factors.float().tolist()))
    torch.testing.assert_close(inverse_frequencies(found.config), inverse_frequencies(scaled.config), rtol=1e-6, atol=0)
    torch.testing.assert_close(logits(found), logits(scaled), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits(found), logits(model), atol=1e-3)


def test_a_window_that_hides_nothing_is_no_window(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", family_model("llama"), keys={"attention.sliding_window": 64})
    found = load_trainable(path, max_context=64)
    assert (found.config.sliding_window, found.config.max_context) == (None, 64)


def test_a_directory_is_asked_for_where_only_one_will_do(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", family_model("llama"))
    with pytest.raises(ValueError, match=r"model\.gguf is a GGUF file, and a Hugging Face directory is needed"):
        checkpoint_folder(path)


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
OWN_YARN = {"rope.scaling.attn_factor": 2.0, "rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_beta_slow": 0.5}
TWICE = 2 * yarn_magnitude(4.0)


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, RopeScaling("linear", 4.0)),
        ({"rope.scale_linear": 4.0}, RopeScaling("linear", 4.0)),
        (YARN, RopeScaling("yarn", 4.0, original_context=16)),
        (YARN | OWN_YARN, RopeScaling("yarn", 4.0, 1, 4, 16, 8.0, 0.5, attention_factor=TWICE)),
    ],
)
def test_scalings_are_read(keys, scaling, tmp_path):
    path = write_gguf(tmp_path / "model.gguf", family_model("llama"), keys=keys)
    assert load_trainable(path).config.rope_scaling == scaling
    path = write_gguf(tmp_path / "none.gguf", family_model("llama"), keys={**keys, "rope.scaling.type": "none"})
    assert load_trainable(path).config.rope_scaling is None


def test_defaults_are_those_of_the_format(tmp_path):
    model = family_model("llama", num_kv_heads=4, head_dim=16, rope_theta=10000.0)
    names = ("attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.freq_base")
    keys = dict.fromkeys((*names, "rope.dimension_count"))
    found = load_trainable(write_gguf(tmp_path / "model.gguf", model, keys=keys))
    assert found.config == model.config
    assert torch.equal(logits(found), logits(model))


def many(name):
    """Return the type that llama.cpp's Q4_K_M gives a matrix, or nearly so."""
    return Kind.Q6_K if name in ("output.weight", "token_embd.weight") or "attn_v" in name else Kind.Q4_K


WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_heads": 8, "head_dim": 32}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_k_types_stay_whole_and_are_scored(family, tied, tmp_path):
    model = family_model(family, tie_embeddings=tied, **WIDE)
    path = write_gguf(tmp_path / "model.gguf", model, family, many)
    held = load_gguf(path, CPU)
    formats = {part.quantised.format.name for part in held.modules() if isinstance(part, Linear) and part.quantised}
    assert formats == {"q4_k", "q6_k"}
    found = load_trainable(path)
    assert torch.equal(logits(found), logits(model))
    for backend in ("native", "eager"):
        torch.testing.assert_close(scored(load(path, backend=backend), IDS)[0], logits(model)[0], rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match=r"arithmetic=.int8. cannot be had: .*stored as q8_0, q4_0, q4_1"):
        load(path, arithmetic="int8", backend="eager")


def test_types_of_5_bits_are_widened_in_a_line(tmp_path):
    def kinds(name):
        return Kind.Q5_K if "attn_v" in name else Kind.Q5_1 if "ffn" in name else Kind.Q5_0

    model = family_model("llama", **WIDE)
    path = write_gguf(tmp_path / "model.gguf", model, kind=kinds)
    with pytest.warns(WideningWarning, match="16 tensors of Q5_0, Q5_1, Q5_K become float32"):
        found = load_trainable(path)
    assert torch.equal(logits(found), logits(model))
    assert oracles.checkpoints.gguf.WideningWarning is WideningWarning
