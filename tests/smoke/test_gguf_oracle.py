"""Experiments on a GGUF file."""

import json
from pathlib import Path

import pytest
import torch

from experiments.harness import running as harness
from experiments.harness.models import PLACEMENT, load_model, load_own, path_of
from experiments.peers.refusing import PeerRefusal
from experiments.peers.with_transformers import load_peer
from tests.support.models.gguf_files import TOKENS, Kind, family_model, tokenizer_keys, write_gguf
from tests.support.runs.experiments import summary_of, the_folder

EAGER = dict.fromkeys(PLACEMENT) | {"device": "cpu", "backend": "eager"}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = family_model("llama", tie_embeddings=True, vocab_size=len(TOKENS))
    path: Path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return write_gguf(path, model, kind=Kind.Q4_1, tokenizer=tokenizer_keys())


@pytest.fixture
def argv(oracle: Path, tmp_path: Path) -> list[str]:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"the thing and {i} the"}) + "\n" for i in range(3)))
    return ["--oracle", str(oracle), "--prompts", str(prompts), "--max-new-tokens", "8", "--out", str(tmp_path / "out")]


@pytest.mark.parametrize("name", ["prompt_lookup", "quantized"])
def test_strategies_run_on_it(name, argv, tmp_path):
    assert harness.script(name, "", argv) == 0
    summary = json.loads((the_folder(tmp_path / "out") / "summary.json").read_text(encoding="utf-8"))
    assert {arm["identical"] for arm in summary["arms"].values()} == {3}


def test_products_of_whole_numbers_are_asked_for_by_name(argv, tmp_path, capsys):
    assert harness.script("prompt_lookup", "", [*argv, "--arithmetic", "int8", "--backend", "eager"]) == 0
    assert "MB, products of whole numbers." in capsys.readouterr().out
    summary = json.loads((the_folder(tmp_path / "out") / "summary.json").read_text(encoding="utf-8"))
    assert summary["provenance"]["arguments"]["arithmetic"] == "int8"
    assert {arm["identical"] for arm in summary["arms"].values()} == {3}


def test_the_arithmetic_is_the_oracles_alone(oracle):
    assert load_model(str(oracle), EAGER, arithmetic="int8").weight_type == "q4_1-int8"
    assert load_own(str(oracle), EAGER).weight_type != "q4_1-int8"


def test_what_others_compute_has_no_such_products(argv, oracle):
    with pytest.raises(ValueError, match="--arithmetic int8: hf:nowhere is computed by transformers"):
        load_model("hf:nowhere", dict.fromkeys(PLACEMENT), arithmetic="int8")
    with pytest.raises(SystemExit, match="arithmetic='int8' cannot be had"):
        harness.script(
            "prompt_lookup", "", ["--oracle", "code-draft", *argv[2:], "--arithmetic", "int8", "--backend", "eager"]
        )


@pytest.mark.parametrize("arithmetic", [[], ["--arithmetic", "int8"]])
def test_transformers_reads_the_numbers_that_a_file_stands_for(arithmetic, argv, tmp_path):
    peers = ["transformers", "transformers:lookup", "transformers:bfloat16"]
    assert harness.script("compare", "", [*argv, "--strategies", "prompt_lookup", "--peer", *peers, *arithmetic]) == 0
    summary = summary_of(tmp_path / "out")
    assert not summary["provenance"]["refused"]
    if not arithmetic:
        assert [summary["arms"][name]["identical"] for name in peers[:2]] == [3, 3]


def test_transformers_is_given_no_other_model(tmp_path):
    other = write_gguf(tmp_path / "qwen.gguf", family_model("qwen2"), kind=Kind.Q4_1, tokenizer=tokenizer_keys())
    with pytest.raises(PeerRefusal, match="only plain Llama shapes"):
        load_peer(other, torch.float32, "cpu")
    with pytest.raises(PeerRefusal, match="reads checkpoint directories and GGUF files here, and nowhere is neither"):
        load_peer(Path("nowhere"), torch.float32, "cpu")
    with pytest.raises(PeerRefusal, match="a vocabulary of their own, and smol-draft reads its oracle's"):
        load_peer(path_of("smol-draft"), torch.float32, "cpu")
