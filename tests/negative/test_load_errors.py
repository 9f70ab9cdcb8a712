"""What loading refuses, and that each error names the file and the key."""

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import oracles.checkpoints.loading
from oracles.checkpoints.chat_files import EndsBeyond
from oracles.checkpoints.embedded_folders import head_folder
from oracles.checkpoints.loading import load
from oracles.transformer.config import TransformerConfig
from oracles.transformer.eager import Transformer
from specdec import SpeculativeDecoder

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "eos_token_id": 1,
}
GPT2 = {"model_type": "gpt2", "vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
QWEN2 = LLAMA | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2}
MISTRAL = LLAMA | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
NEOX = LLAMA | {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A one-layer Llama checkpoint that loads."""
    shape = TransformerConfig(
        vocab_size=11, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=12, max_context=32
    )
    save_file(Transformer(shape, seed=0).state_dict(), tmp_path / "model.safetensors")
    write_config(tmp_path, LLAMA)
    return tmp_path


def write_config(folder: Path, values: Any, name: str = "config.json") -> None:
    (folder / name).write_text(json.dumps(values), encoding="utf-8")


def change_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors: dict[str, Any] = load_file(folder / "model.safetensors") | changes
    save_file({k: v for k, v in tensors.items() if v is not None}, folder / "model.safetensors")


def assert_refused(folder: Path, *parts: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(parts[0])) as caught:
        load(folder, **options)
    for part in parts:
        assert part in str(caught.value)


def test_the_checkpoint_that_the_others_break_loads(folder):
    assert load(folder).eos_ids == (1,)
    text = (folder / "config.json").read_text(encoding="utf-8")
    (folder / "config.json").write_text(text, encoding="utf-8-sig")
    assert load(folder).eos_ids == (1,)


def test_ends_beyond_the_vocabulary_are_no_error_and_said_if_there_is_no_other(folder):
    write_config(folder, {"eos_token_id": [1, 999]}, "generation_config.json")
    assert load(folder).eos_ids == (1,)
    write_config(folder, {"eos_token_id": 999}, "generation_config.json")
    with pytest.warns(EndsBeyond, match=r"generation_config\.json names as 'eos_token_id': \[999\] of 11 ids"):
        assert load(folder).eos_ids == ()


def test_what_is_no_name_and_no_path():
    for name, words in (("x" * 5000, "as a path: File name too long"), (None, "name_or_path is None; give a")):
        for loads in (load, oracles.checkpoints.loading.load_tokenizer, oracles.load_trainable, head_folder):
            with pytest.raises(ValueError, match=words):
                loads(name)


def test_unknown_names_list_the_known_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(oracles.checkpoints.embedded_folders, "EMBEDDED", tmp_path)
    for name in ("alpha", "beta"):
        (tmp_path / name).mkdir()
        write_config(tmp_path / name, LLAMA)
    with pytest.raises(ValueError, match=r"'gamma' is neither an embedded checkpoint \(alpha, beta\) nor a pub"):
        oracles.checkpoints.loading.load("gamma")


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.2-1B", "org/code", "a.b/c_d-e"])
def test_a_name_of_the_hub_is_answered_by_the_line_that_downloads_it(name):
    folder = "./" + name.partition("/")[2]
    line = f"; if it is a model of the Hugging Face hub: hf download {name} --local-dir {folder}, then give {folder!r}"
    for loads in (load, oracles.checkpoints.loading.load_tokenizer, oracles.load_trainable, oracles.load_huggingface):
        with pytest.raises(ValueError, match=re.escape(line) + "$"):
            loads(name)


def test_what_is_no_name_of_the_hub_is_not_downloaded(tmp_path):
    for place in (
        "nowhere",
        "./org/model",
        "/org/model",
        "org/models/mine",
        "org/model/",
        "org/model.gguf",
        tmp_path / "x",
    ):
        with pytest.raises(ValueError, match=r"neither a directory nor a GGUF file$"):
            load(place)
    (tmp_path / "org" / "model").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"has no config\.json; give a Hugging Face checkpoint directory$"):
        load(tmp_path / "org" / "model")


def test_a_directory_without_config(tmp_path):
    assert_refused(tmp_path, str(tmp_path), "config.json")


@pytest.mark.parametrize("text", ["{", "[1]", "\xff", "[" * 100_000])
def test_a_config_that_is_no_object(folder, text):
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert_refused(folder, str(folder / "config.json"), "JSON")


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
        {"model_type": "mamba", "architectures": []},
        {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]},
        {"model_type": "llama", "architectures": ["SomebodysForCausalLM"]},
        {"model_type": None, "architectures": None},
    ],
)
def test_unknown_architectures(folder, changes):
    write_config(folder, LLAMA | changes)
    assert_refused(folder, "config.json", "unknown architecture", "gpt_neox", "hf:DIR")


def test_architectures_serve_where_model_type_is_absent(folder):
    write_config(folder, LLAMA | {"model_type": None})
    assert load(folder).vocab_size == 11


@pytest.mark.parametrize("key", [key for key in LLAMA if key not in ("architectures", "model_type", "eos_token_id")])
def test_missing_keys(folder, key):
    write_config(folder, {name: value for name, value in LLAMA.items() if name != key})
    assert_refused(folder, "config.json", repr(key))


@pytest.mark.parametrize(
    ("base", "changes", "key"),
    [
        (LLAMA, {"hidden_size": "8"}, "hidden_size"),
        (LLAMA, {"hidden_size": True}, "hidden_size"),
        (LLAMA, {"tie_word_embeddings": 1}, "tie_word_embeddings"),
        (LLAMA, {"num_attention_heads": 3}, "num_heads"),
        (LLAMA, {"hidden_act": "mish"}, "hidden_act"),
        (LLAMA, {"layer_types": ["sliding_attention"]}, "layer_types"),
        (MISTRAL, {"layer_types": ["full_attention"], "sliding_window": 8}, "layer_types"),
        (MISTRAL, {"layer_types": ["sliding_attention"], "sliding_window": None}, "layer_types"),
        (QWEN2, {"use_mrope": True}, "use_mrope"),
        (LLAMA, {"logit_softcap": 30.0}, "logit_softcap"),
        (LLAMA, {"sliding_window": 8}, "sliding_window"),
        (LLAMA, {"quantization_config": {"quant_method": "gptq"}}, "'quantization_config' says that gptq has quant"),
        (LLAMA, {"compression_config": {"format": "int-quantized"}}, "'compression_config' says that int-quantized"),
        (LLAMA, {"quantization": {"bits": 4, "group_size": 64}}, "'quantization' says that an unnamed method has"),
        (LLAMA, {"rope_interleaved": True}, "rope_interleaved"),
        (LLAMA, {"pruned_heads": {"0": [1]}}, "pruned_heads"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA, {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        (
            LLAMA,
            {"rope_parameters": {"rope_type": "longrope", "factor": 2.0}},
            "llama3, yarn; a whole model with",
        ),
        (LLAMA, {"rope_parameters": ROPE | {"mscale": 0.7}}, "mscale"),
        (LLAMA, {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}}, "full_attention"),
        (LLAMA, {"rope_scaling": {"type": "linear"}}, "factor"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor"),
        (LLAMA, {"rope_scaling": {name: v for name, v in LLAMA3.items() if name != "low_freq_factor"}}, "low_freq"),
        (LLAMA, {"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2.0}}, "contradictory"),
        (LLAMA, {"rope_parameters": ROPE, "rope_theta": 500.0}, "contradictory"),
        (LLAMA, {"rope_parameters": ROPE, "rope_scaling": {"type": "linear", "factor": 2.0}}, "contradict"),
        (QWEN2, {"layer_types": ["sliding_attention"]}, "layer_types"),
        (QWEN2, {"layer_types": ["chunked_attention"]}, "layer_types"),
        (
            QWEN2,
            {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
            "layer_types",
        ),
        (NEOX, {"rotary_pct": 0.25, "partial_rotary_factor": 0.5}, "contradictory"),
        (GPT2, {"scale_attn_weights": False}, "scale_attn_weights"),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention"),
        (GPT2, {"rope_theta": 10000.0}, "rope_theta"),
        (LLAMA, {"rope_theta": math.inf}, "rope_theta"),
        (LLAMA, {"rope_theta": math.nan}, "rope_theta"),
        (LLAMA, {"rope_theta": 10**400}, "rope_theta"),
        (LLAMA, {"rope_parameters": ROPE | {"rope_theta": math.inf}}, "rope_theta"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": math.inf}}, "factor"),
        (LLAMA, {"rope_scaling": LLAMA3 | {"high_freq_factor": math.inf}}, "high_freq_factor"),
        (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 2.0}, "rope_theta": 1.0}, "rope_theta"),
        (LLAMA, {"rms_norm_eps": math.inf}, "rms_norm_eps"),
        (NEOX, {"rotary_pct": math.inf}, "rotary_pct"),
        (NEOX, {"rotary_pct": 1e308}, "rotary_pct"),
        (NEOX, {"rotary_pct": -0.5}, "rotary_pct"),
        (NEOX, {"num_attention_heads": 0}, "num_heads"),
        (LLAMA, {"architectures": [["LlamaForCausalLM"]]}, "architectures"),
        (LLAMA, {"layer_types": [["full_attention"]]}, "layer_types"),
    ],
)
def test_keys_that_would_change_the_forward_pass(folder, base, changes, key):
    write_config(folder, base | changes)
    assert_refused(folder, "config.json", key)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": LLAMA3},
        {"rope_scaling": None, "rope_theta": 500.0},
        {"rope_parameters": ROPE, "rope_theta": 10000, "rope_scaling": {"rope_type": ROPE["rope_type"]}},
        {"rope_parameters": ROPE | {"partial_rotary_factor": 1.0}},
        {"logit_softcap": None},
        {"layer_types": ["full_attention"]},
        {"quantization_config": None, "rope_interleaved": False, "pruned_heads": {}},
        {"activation": "swiglu"},
        {"rope_scaling": {"type": "yarn", "factor": 2.0, "attn_factor": 0.9}},
    ],
)
def test_the_same_keys_with_a_meaning_that_is_understood(folder, changes):
    write_config(folder, LLAMA | changes)
    assert load(folder).vocab_size == 11


SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
)


@pytest.mark.parametrize("size", [10**9, 10**18, 10**30])
@pytest.mark.parametrize("key", SIZES)
def test_sizes_that_no_tensor_bears_out_are_refused_before_a_model_is_built(folder, key, size, monkeypatch):
    def build(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a model was built")

    monkeypatch.setattr(oracles.checkpoints.loading, "Transformer", build)
    heads = {"head_dim": 4} if "heads" in key else {}
    write_config(folder, QWEN2 | heads | {"num_key_value_heads": 1} | {key: size})
    started = time.perf_counter()
    assert_refused(folder, str(folder / "config.json"), str(size))
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize("key", ["n_layer", "n_inner", "n_positions", "vocab_size"])
def test_absurd_sizes_of_gpt2_are_refused_before_a_model_is_built(folder, key, monkeypatch):
    monkeypatch.setattr(oracles.checkpoints.loading, "Transformer", lambda *_, **__: pytest.fail("a model was built"))
    write_config(folder, GPT2 | {"n_inner": 12} | {key: 10**9})
    assert_refused(folder, str(folder / "config.json"), str(10**9))


def test_an_empty_tensor_bears_no_size_out(folder, monkeypatch):
    change_weights(folder, extra=torch.ones(0, 10**9))
    monkeypatch.setattr(oracles.checkpoints.loading, "Transformer", lambda *_, **__: pytest.fail("a model was built"))
    write_config(folder, LLAMA | {"intermediate_size": 10**9})
    assert_refused(folder, str(folder / "config.json"), str(10**9))


def test_a_long_context_is_none_of_the_tensors_business(folder):
    write_config(folder, LLAMA | {"max_position_embeddings": 10**12})
    assert load(folder).max_context == 10**12


def write_index(folder: Path, **files: str) -> None:
    weight_map = dict.fromkeys(load_file(folder / WEIGHTS), WEIGHTS) | files
    write_config(folder, {"weight_map": weight_map}, INDEX)


def write_twice(folder: Path) -> None:
    save_file({NORM: torch.ones(8)}, folder / "b.safetensors")
    (folder / WEIGHTS).rename(folder / "a.safetensors")


def write_float8_head(folder: Path) -> None:
    write_config(folder, LLAMA | {"tie_word_embeddings": True})
    change_weights(folder, **{"lm_head.weight": torch.ones(11, 8).to(torch.float8_e4m3fn)})


WEIGHTS, INDEX, NORM, UP = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("model.norm.weight", "model.layers.0.mlp.up_proj.weight"),
)
# What becomes of a folder, and words of the error beside the folder's name.
FOLDERS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    **{f"no {key}": (lambda f, key=key: change_weights(f, **{key: None}), (repr(key), "missing"))
       for key in (UP, NORM, "lm_head.weight")},
    **{f"{key} too": (lambda f, key=key: change_weights(f, **{key: torch.ones(8)}), (WEIGHTS, repr(key), "unexpected"))
       for key in (UP.replace("0", "1"), "model.layers.0.self_attn.q_proj.bias", "model.layers.0.attn.bias",
                   "layers.0.self_attn.rotary_emb.inv_freq", "score.weight")},
    "a head unlike the embedding that it is tied to": (
        lambda f: write_config(f, LLAMA | {"tie_word_embeddings": True}),
        (WEIGHTS, "'lm_head.weight'", "tie_word_embeddings"),
    ),
    "a float8 head that is tied to the embedding": (write_float8_head, (WEIGHTS, "'lm_head.weight'", "F8_E4M3")),
    "another shape": (
        lambda f: change_weights(f, **{UP: torch.ones(8, 12)}), (WEIGHTS, repr(UP), "(8, 12)", "(12, 8)"),
    ),
    "whole numbers": (
        lambda f: change_weights(f, **{NORM: torch.ones(8, dtype=torch.int8)}), (WEIGHTS, repr(NORM), "I8"),
    ),
    "pickles only": (lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"), ("pytorch_model.bin", "convert")),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), ("no *.safetensors",)),
    "a corrupt file": (lambda f: (f / WEIGHTS).write_bytes(b"\0" * 50), (WEIGHTS, "readable")),
    "a tensor in two files": (write_twice, ("b.safetensors", repr(NORM), "another file")),
    "an index that names an absent file": (
        lambda f: write_index(f, **{NORM: "model-2.safetensors"}), ("model-2.safetensors", "missing"),
    ),
    "an index that names an absent tensor": (
        lambda f: write_index(f, **{"model.extra.weight": WEIGHTS}), (WEIGHTS, "'model.extra.weight'", "missing"),
    ),
    **{f"the index {index}": (lambda f, index=index: write_config(f, index, INDEX), (INDEX, "weight_map"))
       for index in ({}, {"weight_map": ["a"]}, {"weight_map": {}}, [])},
    "an index nested too deeply": (lambda f: (f / INDEX).write_text("[" * 100_000), (INDEX, "weight_map")),
    "weights of an older gptq": (
        lambda f: write_config(f, {"bits": 4}, "quantize_config.json"), ("quantize_config.json", "gptq has quantised"),
    ),
    "a corrupt tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), ("tokenizer.json",)),
    **{f"{name} is a folder": (lambda f, name=name: (f / name).mkdir(), (name, "is no file"))
       for name in ("tokenizer.json", "generation_config.json", INDEX)},
    **{f"{name} is a dangling link": (lambda f, name=name: (f / name).symlink_to(f / "absent"), (name, "is no file"))
       for name in ("tokenizer.json", "generation_config.json", INDEX)},
    **{f"the end {eos!r}": (
        lambda f, eos=eos: write_config(f, {"eos_token_id": eos}, "generation_config.json"),
        ("generation_config.json", "eos_token_id"),
    ) for eos in ("1", 1.0, [1, "2"], True)},
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "words"), FOLDERS.values(), ids=FOLDERS)
def test_what_is_wrong_with_a_folder_is_named(folder, spoil, words):
    spoil(folder)
    assert_refused(folder, str(folder), *words)


OUTSIDE = ["../outside.safetensors", "/outside.safetensors", "a/../../outside.safetensors", "C:\\x", "..\\x"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_that_leaves_the_folder(folder, name):
    outside = folder.parent / "outside.safetensors"
    save_file({"model.norm.weight": torch.ones(8)}, outside)
    change_weights(folder, **{"model.norm.weight": None})
    name = str(outside) if name.startswith("/") else name
    write_index(folder, **{"model.norm.weight": name})
    assert_refused(folder, "model.safetensors.index.json: tensor 'model.norm.weight' lies in", repr(name), "leaves the")


def test_an_index_may_name_links_and_files_below(folder):
    """As in the hub's cache: the folder holds links to files elsewhere."""
    blob, below = folder.parent / f"{folder.name}-blob", folder / "shards"
    below.mkdir()
    (folder / "model.safetensors").rename(blob)
    (below / "one.safetensors").symlink_to(blob)
    weight_map = dict.fromkeys(load_file(blob), "shards/one.safetensors")
    write_config(folder, {"weight_map": weight_map}, "model.safetensors.index.json")
    assert load(folder).vocab_size == 11


@pytest.mark.parametrize("dtype", ["int8", "float", torch.int64, torch.complex64])
def test_bad_dtypes(folder, dtype):
    assert_refused(folder, "dtype", "bfloat16", dtype=dtype)


@pytest.mark.parametrize("device", ["xpu", "vulkan", "hpu", "cuda:99"])
def test_devices_that_a_machine_has_not(folder, device):
    assert_refused(folder, f"device is '{device}'", "'cpu'", device=device)


@pytest.mark.parametrize("max_context", [0, "8", True])
def test_bad_contexts(folder, max_context):
    assert_refused(folder, f"max_context must be an integer, 1 or more, not {max_context!r}", max_context=max_context)


def test_a_flag_is_a_truth_value(folder):
    assert_refused(folder, "bitwise must be True or False, not 'x'", bitwise="x")


def test_without_a_tokenizer_prompts_must_be_ids(folder):
    decoder = SpeculativeDecoder(load(folder), None)
    assert len(decoder.generate([[1, 2]], max_new_tokens=2).tokens[0]) <= 2
    with pytest.raises(ValueError, match=r"prompts\[0\].*tokenizer"):
        decoder.generate(["text"], max_new_tokens=2)
