"""``hf:DIR`` on a command line: a checkpoint that ``transformers`` loads and computes, as oracle and as draft."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import oracles
from experiments.harness.arguments import fingerprint
from experiments.harness.models import PLACEMENT, load_model, load_own
from oracles.checkpoints.embedded_folders import EMBEDDED
from specdec import SpeculativeDecoder
from tests.support.models.hf_models import random_model

TEXT = "def add(a, b):\n    return a + b\n\n\ndef add_all(a, b, c):\n    return a + b + c\n"
PLAIN = dict.fromkeys(PLACEMENT) | {"device": "cpu"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a Gemma-shaped target, a Llama-shaped draft and prompts."""
    folder = tmp_path_factory.mktemp("transformers")
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "code" / "tokenizer.json"))
    for name, family in (("target", "gemma2"), ("draft", "llama")):
        changes = {"vocab_size": tokenizer.get_vocab_size() + 5, "max_position_embeddings": 256, "eos_token_id": 0}
        random_model(family, **changes).save_pretrained(folder / name)
        tokenizer.save(str(folder / name / "tokenizer.json"))
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": TEXT[i:]}) + "\n" for i in range(3)))
    return folder


def run(script: str, folders: Path, out: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int | str | None:
    """Run a script on the target; return the status it ends with."""
    names = {"--oracle": f"hf:{folders / 'target'}", "--prompts": folders / "prompts.jsonl", "--out": out}
    arguments = [str(part) for pair in names.items() for part in pair]
    monkeypatch.setattr(sys, "argv", [script, *arguments, "--max-new-tokens", "8", *options])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"experiments.{script}", run_name="__main__")
    return ended.value.code


def test_it_is_oracle_and_draft(folders, tmp_path, monkeypatch):
    draft = f"hf:{folders / 'draft'}"
    assert run("small_transformer", folders, tmp_path, monkeypatch, "--model", draft, "--batch-size", "2") == 0
    (summary,) = tmp_path.glob("small_transformer-*/summary.json")
    assert json.loads(summary.read_text(encoding="utf-8"))["provenance"]["backend"] == "transformers"


def test_it_reads_tokenizer_ends_and_weights(folders):
    oracle = load_model(f"hf:{folders / 'target'}", PLAIN)
    assert (oracle.dtype, oracle.eos_ids, oracle.max_context) == (torch.float32, (0,), 256)
    assert oracle.vocab_size == oracle.tokenizer.get_vocab_size()
    assert load_model(f"hf:{folders / 'target'}", {**PLAIN, "dtype": "bfloat16"}).dtype == torch.bfloat16
    assert SpeculativeDecoder(oracle).generate(["def add"], 4).texts is not None


def test_an_embedded_checkpoint_scores_as_our_own_transformer_does():
    theirs, ours = load_model("hf:code-draft", PLAIN), oracles.load("code-draft")
    runs = [SpeculativeDecoder(one).generate([TEXT], 12, return_logprobs=True) for one in (theirs, ours)]
    assert runs[0].tokens == runs[1].tokens
    assert runs[0].logprobs[0] == pytest.approx(runs[1].logprobs[0], abs=1e-4)


@pytest.mark.parametrize(
    ("script", "options", "reason"),
    [
        ("prompt_lookup", ["--backend", "eager"], "--backend eager: hf:"),
        ("prompt_lookup", ["--weights", "int8"], "--weights int8: hf:"),
        ("prompt_lookup", ["--bitwise"], "--bitwise: hf:"),
        ("early_exit", ["--head", "none"], "early_exit: it needs a transformer of ours"),
        ("quantized", [], "quantized: weights of few bits are made of a transformer of ours, not of hf: models"),
    ],
)
def test_what_these_models_cannot_do_is_refused(folders, tmp_path, monkeypatch, script, options, reason):
    assert reason in str(run(script, folders, tmp_path, monkeypatch, *options))


def test_bad_folders_and_models_of_ours_are_told_apart(folders, tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        load_model(f"hf:{tmp_path}", PLAIN)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="transformers cannot load"):
        load_model(f"hf:{tmp_path}", PLAIN)
    with pytest.raises(ValueError, match="needs a transformer of ours"):
        load_own(f"hf:{folders / 'target'}", PLAIN)


def test_pickled_weights_are_not_opened(tmp_path):
    model = random_model("llama")
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="transformers cannot load"):
        oracles.load_huggingface(tmp_path)


def test_a_missing_library_names_the_extra(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"hf:.*pip install 'exactspec\[hf\]'"):
        load_model(f"hf:{folders / 'target'}", PLAIN)


def test_the_key_of_a_run_covers_the_files(folders, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    arguments = {"oracle": f"hf:{tmp_path}"}
    before = fingerprint(arguments, [])
    (tmp_path / "config.json").write_text("{ }")
    assert fingerprint(arguments, []) != before


def test_a_device_that_is_not_there_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match="device is 'cuda:99', and this machine or this build of torch has none"):
        oracles.load_huggingface(tmp_path, device="cuda:99")
