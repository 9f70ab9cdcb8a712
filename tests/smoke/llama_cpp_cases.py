"""llama.cpp as a peer. ``test_peers`` runs this in a process of its own, which a crash of that library ends alone."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import oracles
from experiments.peers import LlamaCppArm
from specdec import SpeculativeDecoder
from specdec.prompts import NamedPrompt
from tests.support.runs.experiments import LLAMA, TEXT, compared


def test_llama_cpp_decodes_the_same_ids(checkpoints: Path, tmp_path: Path) -> None:
    summary = compared(checkpoints, tmp_path, LLAMA)
    assert not summary["provenance"]["refused"]
    assert summary["provenance"]["packages"]["llama_cpp_python"] is not None
    for name in LLAMA:
        assert summary["arms"][name]["claim"] == "another program"
        assert summary["arms"][name]["prompts"] == 4
    assert [summary["arms"][name]["identical"] for name in LLAMA[:2]] == [4, 4]


def test_llama_cpp_refuses_a_batch_in_its_own_words(checkpoints: Path, tmp_path: Path) -> None:
    refused = compared(checkpoints, tmp_path, LLAMA, "--batch-size", "2")["provenance"]["refused"]
    assert list(refused) == LLAMA
    assert all(said.startswith("Llama.generate takes one prompt a call (") for said in refused.values())


@pytest.mark.parametrize(("dtype", "device"), [("float64", "cpu"), ("float32", "meta")])
def test_types_and_devices_that_are_not_written_are_refused(dtype: str, device: str, checkpoints: Path) -> None:
    oracle = oracles.load(checkpoints / "target", dtype, backend="eager").to(device)
    with pytest.raises(ValueError, match=f"{dtype} on {device}: only float32 and bfloat16 on a CPU"):
        LlamaCppArm("peer", checkpoints / "target", oracle, dtype)


def test_an_end_of_text_ends_llama_cpp_too(checkpoints: Path, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    shutil.copytree(checkpoints / "target", folder)
    oracle = oracles.load(folder)
    free = SpeculativeDecoder(oracle).generate([TEXT], max_new_tokens=10).tokens[0]
    settings = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    (folder / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": free[4]}), encoding="utf-8")
    oracle = oracles.load(folder)
    wanted = SpeculativeDecoder(oracle).generate([TEXT], max_new_tokens=10).tokens
    assert wanted == [free[: free.index(free[4]) + 1]]
    for lookup in (None, (2, 4)):
        arm = LlamaCppArm("peer", folder, oracle, "float32", lookup)
        assert arm.run([NamedPrompt("p", "a", TEXT)], [(0, 0)], 10).tokens == wanted


def test_llama_cpp_scores_every_prompt_anew_and_drafts(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle, prompt = oracles.load(checkpoints / "target"), NamedPrompt("p", "a", TEXT)
    assert oracle.tokenizer is not None
    length, new = len(oracle.tokenizer.encode(TEXT).ids), 30
    passes: dict[bool, list[int]] = {}
    for drafts in (False, True):
        arm = LlamaCppArm("peer", checkpoints / "target", oracle, "float32", (2, 6) if drafts else None)
        kept, original = passes.setdefault(drafts, []), arm._model.eval

        def evaluate(tokens: Sequence[int], kept: list[int] = kept, original: Any = original) -> None:
            kept.append(len(tokens))
            original(tokens)

        monkeypatch.setattr(arm._model, "eval", evaluate)
        for _ in range(2):
            arm.run([prompt], [(0, 0)], new)
        arm._model.close()
    assert passes[False] == 2 * [length, *[1] * (new - 1)]
    assert passes[True][0] == length
    assert max(passes[True][1:]) > 1
    assert len(passes[True]) < len(passes[False])
    assert passes[True] == 2 * passes[True][: len(passes[True]) // 2]
