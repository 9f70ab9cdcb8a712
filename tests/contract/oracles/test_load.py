"""Loading Hugging Face checkpoints, held against transformers: every family, both spellings of the config."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

import oracles.checkpoints.embedded_folders
import oracles.checkpoints.loading
from oracles.checkpoints.hf_config import parse_config
from oracles.checkpoints.loading import load, load_trainable
from oracles.checkpoints.placement import backend_of
from specdec import SpeculativeDecoder
from tests.support.backends import needed_native

VOCAB, CONTEXT, NEW_TOKENS = 61, 48, 12


@dataclass(frozen=True)
class Case:
    """One checkpoint: transformers' config class and arguments, and the older ``config.json`` of the same model.

    What an old one leaves out ("_defaults") has the value that the architecture's class gives it.
    """

    name: str
    config_class: str
    arguments: dict[str, Any]
    old: dict[str, Any]


FILE = Path(__file__).parent / "configs" / "of_families.json"
CASES = [
    Case(name, of["class"], of["new"], of["old"]) for name, of in json.loads(FILE.read_text(encoding="utf-8")).items()
]
PROMPTS = [[5], [3, 44, 7, 60, 2, 19, 8, 1, 33, 12, 21, 9, 9, 40, 3, 17, 25], [11, 50, 6, 6]]


@dataclass(frozen=True)
class Checkpoint:
    """A saved random model and what transformers computes with it: logits of every prompt, and its greedy text."""

    case: Case
    folder: Path
    logits: list[torch.Tensor]
    greedy: list[list[int]]


def make_reference(case: Case) -> Any:
    """Return a transformers model with weights large enough for every part of it to show in the logits."""
    import transformers as reference

    transformers: Any = reference
    transformers.logging.set_verbosity_error()
    config = getattr(transformers, case.config_class)(**case.arguments)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(len(case.name))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
            parameter.normal_(centre, 0.3, generator=generator)
    model.generation_config.eos_token_id = [7, 50]
    model.generation_config.pad_token_id = 0
    return model


@pytest.fixture(scope="module", params=CASES, ids=[case.name for case in CASES])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    case: Case = request.param
    model = make_reference(case)
    folder = tmp_path_factory.mktemp(case.name)
    model.save_pretrained(folder)
    prompts = [torch.tensor([prompt]) for prompt in PROMPTS]
    with torch.no_grad():
        logits = [model(prompt).logits[0] for prompt in prompts]
        texts = [model.generate(p, max_new_tokens=NEW_TOKENS, do_sample=False)[0, p.shape[1] :] for p in prompts]
    return Checkpoint(case, folder, logits, [text.tolist() for text in texts])


@pytest.fixture(scope="module", params=["new", "old"])
def folder(request: pytest.FixtureRequest, checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "new":
        return checkpoint.folder
    old = tmp_path_factory.mktemp(f"{checkpoint.case.name}_old")
    copy_weights(checkpoint.folder, old)
    write_json(old / "config.json", checkpoint.case.old | {"eos_token_id": [7, 50]})
    return old


def copy_weights(source: Path, target: Path) -> None:
    (target / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def edit_json(path: Path, **changes: Any) -> None:
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | changes)


def ragged_logits(oracle: Any, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Return the logits of every prompt, from one padded scoring call."""
    width = max(map(len, prompts))
    tokens = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts])
    cache = oracle.new_cache(len(prompts), width)
    num_nodes = torch.tensor([len(prompt) for prompt in prompts])
    scores = oracle.score(tokens, None, num_nodes, cache, np.arange(len(prompts)))
    return [scores.logits[b, : len(prompt)] for b, prompt in enumerate(prompts)]


def assert_same_logits(oracle: Any, checkpoint: Checkpoint) -> None:
    for ours, theirs in zip(ragged_logits(oracle, PROMPTS), checkpoint.logits, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-4)


def test_logits_and_greedy_text_are_those_of_transformers(folder, checkpoint):
    oracle = load(folder)
    assert (oracle.vocab_size, oracle.max_context, oracle.eos_ids) == (VOCAB, CONTEXT, (7, 50))
    assert (oracle.dtype, oracle.device.type, oracle.tokenizer) == (torch.float32, "cpu", None)
    assert_same_logits(oracle, checkpoint)
    result = SpeculativeDecoder(oracle, None).generate(PROMPTS, max_new_tokens=NEW_TOKENS)
    assert result.tokens == checkpoint.greedy
    assert result.texts is None


def test_the_comparison_has_power(checkpoint):
    assert all(float(logits.std()) > 0.5 for logits in checkpoint.logits)
    assert len({tuple(text) for text in checkpoint.greedy}) == len(PROMPTS)


def test_the_window_that_mistral_has_by_default():
    from transformers import MistralConfig

    old = next(case.old for case in CASES if case.name == "mistral_defaults")
    assert parse_config(old, "config.json").config.sliding_window == MistralConfig().sliding_window


def test_weights_are_resident_once(checkpoint):
    stored = load_file(checkpoint.folder / "model.safetensors")
    table = sum(t.nbytes for name, t in stored.items() if "embed_tokens" in name or "wte" in name)
    needed = sum(tensor.nbytes for tensor in stored.values())
    # A tied embedding may stand twice: as a table to look up and packed as the head.
    assert needed <= load(checkpoint.folder, backend="eager").weight_bytes <= needed + table


@pytest.mark.parametrize("name", ["code", "code-draft-tiny", "arithmetic"])
def test_native_weights_are_resident_once_as_they_are_stored(name):
    needed_native()
    oracle = load(name)
    files = (oracles.checkpoints.embedded_folders.EMBEDDED / name).glob("*.safetensors")
    stored = {key: tensor for file in files for key, tensor in load_file(file).items()}
    config = oracle.config
    # Biases and norms are widened, a vocabulary is padded to blocks of 32, heads and widths to 16.
    padding = 2 * 32 * config.hidden_size + 8 * sum(t.numel() for t in stored.values() if t.dim() == 1)
    needed = sum(tensor.nbytes for tensor in stored.values())
    assert needed <= oracle.weight_bytes <= needed + padding


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    make_reference(CASES[0]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    make_reference(next(case for case in CASES if case.name == "gpt2")).save_pretrained(folder)
    edit_json(folder / "config.json", eos_token_id=None)  # of a GPT-2 of 50,257 ids, whatever the vocabulary
    return folder


@pytest.fixture
def copied(llama: Path, tmp_path: Path) -> Path:
    """A Llama checkpoint that a test may change."""
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((llama / name).read_bytes())
    return tmp_path


def assert_same_model(first: Path, second: Path) -> None:
    for one, other in zip(ragged_logits(load(first), PROMPTS), ragged_logits(load(second), PROMPTS), strict=True):
        assert torch.equal(one, other)


def test_shards_with_an_index(llama, tmp_path):
    make_reference(CASES[0]).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert not (tmp_path / "model.safetensors").exists()
    (tmp_path / "consolidated.safetensors").write_bytes(b"the index does not name this file")
    assert_same_model(llama, tmp_path)


def test_shards_without_an_index(llama, copied):
    tensors = load_file(copied / "model.safetensors")
    (copied / "model.safetensors").unlink()
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[::2]}, copied / "a.safetensors")
    save_file({name: tensors[name] for name in names[1::2]}, copied / "b.safetensors")
    assert_same_model(llama, copied)


def test_pickles_beside_safetensors_are_not_read(llama, copied):
    (copied / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert_same_model(llama, copied)


def test_known_non_parameters_are_passed_over(llama, copied):
    extra = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(2)}
    save_file(load_file(copied / "model.safetensors") | extra, copied / "model.safetensors")
    assert_same_model(llama, copied)


def test_a_tied_head_stored_twice_is_passed_over(gpt2, tmp_path):
    tensors = load_file(gpt2 / "model.safetensors")
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((gpt2 / "config.json").read_bytes())
    assert_same_model(gpt2, tmp_path)


def test_gpt2_without_prefix_and_with_masks(gpt2, tmp_path):
    tensors = {k.removeprefix("transformer."): v for k, v in load_file(gpt2 / "model.safetensors").items()}
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT)
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((gpt2 / "config.json").read_bytes())
    assert_same_model(gpt2, tmp_path)


def write_tokenizer(folder: Path, size: int, num_added: int = 0) -> None:
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_tokens([f"added{i}" for i in range(num_added)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(("size", "num_added"), [(50, 0), (50, 4)])
def test_the_vocabulary_is_the_tokenizers_and_padding_is_cut(llama, copied, size, num_added):
    write_tokenizer(copied, size, num_added)
    oracle = load(copied)
    assert oracle.vocab_size == size + num_added
    prompts = [[5, 3], [20, 49, 1]]
    for ours, whole in zip(ragged_logits(oracle, prompts), ragged_logits(load(llama), prompts), strict=True):
        assert torch.equal(ours, whole[:, : size + num_added])


def test_a_tokenizer_beyond_the_embedding_does_not_widen_it(copied):
    write_tokenizer(copied, VOCAB, num_added=3)
    assert load(copied).vocab_size == VOCAB


def test_the_tokenizers_stored_truncation_and_padding_are_off(copied):
    write_tokenizer(copied, VOCAB)
    tokenizer = load(copied).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("w5 w6 w7 w8 w9").ids == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": 5}, 6, (5,)),
        ({"eos_token_id": [5, 9]}, 6, (5, 9)),
        ({"eos_token_id": None}, 6, (6,)),
        ({}, [6, 8], (6, 8)),
        (None, 6, (6,)),
        (None, None, ()),
        ({"eos_token_id": [0, VOCAB]}, 6, (0,)),
        ({"eos_token_id": 0}, 6, (0,)),
    ],
)
def test_eos_ids(copied, generation, config, expected):
    edit_json(copied / "config.json", eos_token_id=config)
    (copied / "generation_config.json").unlink()
    if generation is not None:
        write_json(copied / "generation_config.json", generation)
    assert load(copied).eos_ids == expected


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_dtypes(llama, copied, dtype):
    asked = getattr(torch, dtype)
    expected = ragged_logits(load(llama), PROMPTS)
    for given in (dtype, asked):
        oracle = load(copied, dtype=given)
        assert oracle.dtype == asked
        assert_close_in(asked, ragged_logits(oracle, PROMPTS), expected)


def assert_close_in(dtype: torch.dtype, ours: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    # Rounding errors of the few dozen operations between the embedding and the logits, relative to the largest logit.
    error = 32 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.0, atol=error * float(other.abs().max()))


def test_half_precision_files_are_served_in_float32_on_the_cpu(llama, copied):
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(llama / "model.safetensors").items()}
    save_file(tensors, copied / "model.safetensors")
    rounded = copied / "rounded"
    rounded.mkdir()
    save_file({name: tensor.float() for name, tensor in tensors.items()}, rounded / "model.safetensors")
    (rounded / "config.json").write_bytes((copied / "config.json").read_bytes())
    assert load(copied).dtype == torch.float32
    assert_same_model(copied, rounded)
    # Elsewhere the file's dtype is kept; the meta device stands in for an accelerator.
    elsewhere = load(copied, device="meta")
    assert (elsewhere.dtype, elsewhere.device.type) == (torch.bfloat16, "meta")
    assert load(copied, dtype="float32", device="meta").dtype == torch.float32


@pytest.mark.parametrize("fixture", ["llama", "gpt2"])
def test_max_context_caps(fixture, request):
    folder = request.getfixturevalue(fixture)
    capped = load(folder, max_context=20)
    assert capped.max_context == 20
    assert load(folder, max_context=10 * CONTEXT).max_context == CONTEXT
    for ours, whole in zip(ragged_logits(capped, PROMPTS), ragged_logits(load(folder), PROMPTS), strict=True):
        assert torch.equal(ours, whole)


def test_embedded_names_resolve_before_folders(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(oracles.checkpoints.embedded_folders, "EMBEDDED", llama.parent)
    monkeypatch.chdir(tmp_path)
    (tmp_path / llama.name).mkdir()
    assert llama.name in oracles.checkpoints.embedded_folders.embedded_names()
    assert oracles.checkpoints.loading.load(llama.name).vocab_size == VOCAB
    with pytest.raises(ValueError, match=r"config\.json"):
        oracles.checkpoints.loading.load(f"./{llama.name}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": "int3"}, "weights is 'int3'; choose one of .*'int8-dynamic', 'q4_0-int8', or None"),
        (
            {"weights": "int8-dynamic", "dtype": "bfloat16"},
            "weights='int8-dynamic' needs float32 arithmetic on a CPU, and dtype is 'bfloat16'",
        ),
        ({"weights": "int8-dynamic", "dtype": torch.float64, "backend": "eager"}, "dtype is 'float64': give"),
        ({"weights": "q4_0-int8", "device": "cuda"}, "weights='q4_0-int8' needs float32 arithmetic on a CPU"),
        ({"weights": "int8-dynamic", "device": "cuda"}, "on a CPU, and device is 'cuda': give"),
        ({"weights": "int8-dynamic", "device": "cuda", "dtype": "float32"}, "on a CPU, .*device is 'cuda'"),
        ({"weights": "int8", "device": "cuda", "dtype": "float32", "backend": "native"}, "'native' cannot run"),
    ],
)
def test_weights_that_make_no_sense_are_refused_before_anything_is_read(arguments, message, llama):
    with pytest.raises(ValueError, match=message):
        load(llama, **arguments)


@pytest.mark.parametrize("weights", ["float16", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_rounded_weights_are_read_in_the_dtype_of_the_arithmetic(dtype, weights, llama):
    made = load(llama, dtype=dtype, weights=weights)
    rounded = load_trainable(llama, "float32").store(weights).dequantise()
    assert (made.backend, made.dtype, made.weight_type) == ("eager", getattr(torch, dtype), dtype)
    for number in range(made.num_layers):
        layers = (model.model.layers[number].mlp.down_proj for model in (made, rounded))
        found, wanted = (layer.weight for layer in layers)
        assert torch.equal(found, wanted.to(made.dtype))


@pytest.mark.parametrize(
    ("asked", "dtype", "device", "chosen"),
    [
        (None, None, "cuda", "graphed"),
        (None, torch.float64, "cuda:1", "graphed"),
        ("graphed", torch.float32, "cuda:1", "graphed"),
        ("eager", None, "cuda", "eager"),
        ("graphed", torch.float64, "cpu", "graphed"),
        (None, torch.float64, "cpu", "eager"),
        (None, None, "meta", "eager"),
    ],
)
def test_the_backend_is_the_one_asked_for_or_the_devices_own(asked, dtype, device, chosen):
    assert backend_of(asked, dtype, torch.device(device), bitwise=False) == chosen


@pytest.mark.parametrize(
    ("asked", "dtype", "device", "chosen"),
    [
        (None, None, "meta", "graphed"),
        (None, torch.bfloat16, "cpu", "graphed"),
        ("eager", torch.float32, "cpu", "eager"),
        ("graphed", None, "cpu", "graphed"),
    ],
)
def test_bits_that_must_be_kept_choose_the_backend_too(asked, dtype, device, chosen):
    assert backend_of(asked, dtype, torch.device(device), bitwise=True) == chosen


@pytest.mark.parametrize(
    ("options", "has"), [({"dtype": "bfloat16"}, "dtype is 'bfloat16'"), ({"device": "cuda:1"}, "device is 'cuda:1'")]
)
def test_eager_refuses_bits_that_it_cannot_keep_before_anything_is_read(options, has, copied):
    (copied / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=f"^bitwise is True, backend 'eager' .* and {has}: give backend='graphed'$"):
        load(copied, backend="eager", bitwise=True, **options)


@pytest.mark.parametrize("options", [{}, {"backend": "eager"}, {"backend": "graphed", "dtype": "bfloat16"}])
def test_an_oracle_that_keeps_bits_says_so(options, llama):
    assert load(llama, bitwise=True, **options).bitwise


def test_a_machine_that_does_not_keep_bits_is_an_error(llama, monkeypatch):
    monkeypatch.setattr("oracles.transformer.eager.has_bitwise_scores", lambda model: False)
    assert not load(llama, backend="eager").bitwise
    with pytest.raises(ValueError, match=r"check at load found .* backend 'eager' depend on the pass .*'graphed'"):
        load(llama, backend="eager", bitwise=True)


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"weights": "int8"}, {"weights": "q4_0-int8"}])
def test_a_graphed_oracle_is_loaded_as_an_eager_one(options, llama):
    eager, graphed = (load(llama, backend=backend, **options) for backend in ("eager", "graphed"))
    assert (graphed.backend, graphed.dtype, graphed.weight_type) == ("graphed", eager.dtype, eager.weight_type)
    assert graphed.weight_bytes == eager.weight_bytes
    assert graphed.cache_format != eager.cache_format
    expected = [logits.float() for logits in ragged_logits(eager, PROMPTS)]
    assert_close_in(eager.dtype, ragged_logits(graphed, PROMPTS), expected)


def test_int8_weights_are_refused_by_the_name_of_a_layer_that_is_not_finite(copied):
    tensors = load_file(copied / "model.safetensors")
    tensors["model.layers.1.self_attn.o_proj.weight"][2, 3] = torch.nan
    save_file(tensors, copied / "model.safetensors")
    for backend in ("eager", None):
        assert load(copied, backend=backend).weight_bytes > 0
        with pytest.raises(ValueError, match=r"model\.layers\.1\.self_attn\.o_proj: a weight is NaN"):
            load(copied, backend=backend, weights="int8")
