"""Experiments on a GGUF file."""

import json
from pathlib import Path

import pytest

from experiments.harness import running as harness
from experiments.harness.models import PLACEMENT, load_model, load_own
from experiments.peers.refusing import PeerRefusal
from experiments.peers.with_transformers import TransformersArm
from tests.support.experiments import the_folder
from tests.support.gguf_files import Kind, family_model, tokenizer_keys, write_gguf

EAGER = dict.fromkeys(PLACEMENT) | {"device": "cpu", "backend": "eager"}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = family_model("llama", tie_embeddings=True)
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


def test_peers_say_why_they_do_not_run(argv, oracle, tmp_path):
    more = ["--strategies", "prompt_lookup", "--peer", "transformers", "--arithmetic", "int8", "--backend", "eager"]
    assert harness.comparison("", [*argv, *more]) == 0
    summary = json.loads((the_folder(tmp_path / "out") / "summary.json").read_text(encoding="utf-8"))
    assert "not --arithmetic int8: leave that out" in summary["provenance"]["refused"]["transformers"]
    with pytest.raises(PeerRefusal, match=r"reads checkpoint directories here, and .*model\.gguf is none"):
        TransformersArm("transformers", oracle, load_own(str(oracle), EAGER))
