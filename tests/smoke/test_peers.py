"""Other programs beside ours: what they decode, and what they say if they cannot."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import oracles
from experiments.peers import with_llama_cpp, with_transformers
from experiments.peers.refusing import words_of
from tests.support.runs.experiments import LLAMA, TEXT, compared, write_rows

ROOT = Path(__file__).parents[2]


def test_what_is_not_installed_is_a_row(checkpoints, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(with_llama_cpp, "PACKAGES", ("no_such_package", "nor_this"))
    summary = compared(checkpoints, tmp_path, ["transformers", *LLAMA])
    words = "no_such_package and nor_this not installed: pip install 'exactspec[llamacpp]'"
    assert summary["provenance"]["refused"] == dict.fromkeys(LLAMA, words)
    assert list(summary["arms"]) == ["plain", "prompt_lookup", "transformers"]
    assert " ".join(capsys.readouterr().out.split()).count(f"refused: {words}") == len(LLAMA)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [("--temperature", "0.5", "use --temperature 0"), ("--weights", "int8", "--weights int8: leave that out")],
)
def test_what_no_peer_can_do_is_a_row(option, value, words, checkpoints, tmp_path):
    peers = ["transformers", *LLAMA]
    refused = compared(checkpoints, tmp_path, peers, option, value)["provenance"]["refused"]
    assert list(refused) == peers
    assert all(words in said for said in refused.values())


def test_a_peer_takes_the_weights_that_it_has(checkpoints, tmp_path):
    names = ["transformers", "transformers:bfloat16"]
    summary = compared(checkpoints, tmp_path, names, "--weights", "bfloat16")
    words = "its weights are float32, not --weights bfloat16: leave that out, or take transformers:bfloat16"
    assert summary["provenance"]["refused"] == {"transformers": words}
    (units,) = tmp_path.glob("*/units.jsonl")
    arms = json.loads(units.read_text(encoding="utf-8").splitlines()[0])["arms"]
    assert [arms[name]["settings"]["dtype"] for name in ("plain", names[1])] == ["float32", "bfloat16"]


def test_a_peer_ends_where_the_context_of_the_oracle_ends(checkpoints, tmp_path):
    tokenizer = oracles.load(checkpoints / "target").tokenizer
    assert tokenizer is not None
    long = tokenizer.decode(tokenizer.encode(TEXT * 20).ids[:250])
    assert 256 - 32 < len(tokenizer.encode(long).ids) < 256
    rows = [{"id": name, "kind": "a", "prompt": text} for name, text in (("long", long), ("short", TEXT))]
    more = ("--prompts", str(write_rows(tmp_path / "prompts.jsonl", rows)), "--max-new-tokens", "32")
    arm = compared(checkpoints, tmp_path / "out", ["transformers"], *more, "--batch-size", "2")["arms"]["transformers"]
    assert (arm["identical"], arm["prompts"]) == (2, 2)


def test_a_fault_is_no_refusal(checkpoints, tmp_path, monkeypatch):
    def broken(path: Path, *_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(with_transformers, "load_peer", broken)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        compared(checkpoints, tmp_path, ["transformers"])


def test_words_fit_a_cell_of_a_table():
    assert words_of(ValueError("a | b\nsecond line")) == "a | b"
    assert words_of(KeyError()) == "KeyError()"


@pytest.mark.skipif(bool(with_llama_cpp.missing()), reason=f"not installed: {with_llama_cpp.missing()}")
def test_llama_cpp_in_a_process_of_its_own():
    command = [sys.executable, "-m", "pytest", "-q", "tests/smoke/llama_cpp_cases.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
