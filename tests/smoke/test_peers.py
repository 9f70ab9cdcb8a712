"""Other programs beside ours: what they decode, and what they say if they cannot."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.harness import running as harness
from experiments.peers import with_llama_cpp, with_transformers
from experiments.peers.refusing import words_of
from specdec import Oracle
from tests.smoke.test_experiments import checkpoints, common, the_folder  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[2]

LLAMA = ["llama.cpp", "llama.cpp:lookup", "llama.cpp:bfloat16"]


def compared(folder: Path, out: Path, peers: Sequence[str], *more: str) -> dict[str, Any]:
    """Return the summary of a comparison with peers."""
    argv = [*common(folder, out), "--strategies", "prompt_lookup", "--peer", *peers, *more]
    assert harness.comparison("", argv) == 0
    found: dict[str, Any] = json.loads((the_folder(out) / "summary.json").read_text(encoding="utf-8"))
    return found


def test_what_is_not_installed_is_a_row(
    checkpoints: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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
def test_what_no_peer_can_do_is_a_row(option: str, value: str, words: str, checkpoints: Path, tmp_path: Path) -> None:  # noqa: F811
    peers = ["transformers", *LLAMA]
    refused = compared(checkpoints, tmp_path, peers, option, value)["provenance"]["refused"]
    assert list(refused) == peers
    assert all(words in said for said in refused.values())


def test_a_fault_is_no_refusal(checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def broken(folder: Path, oracle: Oracle) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(with_transformers, "_load", broken)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        compared(checkpoints, tmp_path, ["transformers"])


def test_words_fit_a_cell_of_a_table() -> None:
    assert words_of(ValueError("a | b\nsecond line")) == "a / b"
    assert words_of(KeyError()) == "KeyError()"


@pytest.mark.skipif(bool(with_llama_cpp.missing()), reason=f"not installed: {with_llama_cpp.missing()}")
def test_llama_cpp_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "tests/smoke/llama_cpp_cases.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
