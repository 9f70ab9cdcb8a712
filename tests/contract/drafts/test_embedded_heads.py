"""Heads that ship: they have names, are told from models, belong to an oracle, and draft for it unasked."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import drafts
import oracles
from experiments import train_head
from experiments.harness import running as harness
from experiments.harness.arguments import fingerprint
from oracles.checkpoints import embedded_folders
from oracles.checkpoints.embedded_folders import EMBEDDED, embedded_names, head_names, heads_of
from oracles.checkpoints.gguf import PUBLISHED
from oracles.heads import NativeEagle3Head
from specdec import SpeculativeDecoder
from tests.support.models.head_folders import medusa_folder
from tests.support.runs.experiments import common, few_strategies, the_folder, write_checkpoints
from tests.support.texts.own_texts import write_own_text

KEPT = ("eagle3", "block_drafter", "medusa", "prompt_lookup")


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two models of one shape each, and of a head that was trained for one of them for a moment."""
    folder = tmp_path_factory.mktemp("embedded")
    write_checkpoints(folder)
    write_own_text(folder / "own.safetensors")
    where = {"--oracle": folder / "target", "--own-text": folder / "own.safetensors", "--out": folder / "run"}
    sizes = "--steps 2 --window 32 --step-tokens 64 --dev-windows 2 --precision float32 --layers 0 1 --vocab-size 64"
    given = [str(part) for pair in where.items() for part in pair]
    train_head.main([*given, *sizes.split(), "--verifier", "target"])
    shutil.copytree(folder / "run" / "head", folder / "target-eagle3")
    return folder


@pytest.fixture
def embedded(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(embedded_folders, "EMBEDDED", shipped)
    return shipped


@pytest.fixture
def few() -> Iterator[None]:
    with few_strategies(*KEPT):
        yield


def test_a_head_is_told_from_a_model_and_loads_by_its_name(embedded):
    assert "target" in embedded_names()
    assert "target-eagle3" in head_names()
    assert not set(head_names()) & set(embedded_names())
    assert heads_of("target") == {"eagle3": "target-eagle3"}
    assert heads_of("draft") == {}
    oracle = oracles.load("target")
    head = oracles.load_head("target-eagle3", oracle)
    assert isinstance(head, NativeEagle3Head)
    made = SpeculativeDecoder(oracle, drafts.Eagle3(head, 3)).generate(["def f(x):"], 8)
    assert made.tokens == SpeculativeDecoder(oracle).generate(["def f(x):"], 8).tokens
    with pytest.raises(ValueError, match=r"'target-eagle3' is a head, .* give it to oracles.load_head"):
        oracles.load("target-eagle3")
    with pytest.raises(ValueError, match=r"'target' is neither an embedded head \(.*target-eagle3.*\) nor a folder"):
        oracles.load_head("target", oracle)


def test_with_another_oracle_it_is_refused_by_the_name_of_its_own(embedded):
    with pytest.raises(ValueError, match=r"^target-eagle3 drafts for target: .* load it with the oracle that it was"):
        oracles.load_head("target-eagle3", oracles.load("draft"))
    with pytest.raises(ValueError, match=r"'target-eagle3' is a published head, not an exit head"):
        oracles.heads.load_exit_head("target-eagle3", oracles.load("target"))


def test_medusas_heads_ship_too(embedded, tmp_path, monkeypatch):
    medusa_folder(tmp_path / "three", layout="original")
    monkeypatch.setattr(embedded_folders, "EMBEDDED", tmp_path)
    assert (embedded_names(), head_names(), heads_of("tiny")) == ((), ("three",), {"medusa": "three"})


@pytest.mark.usefixtures("embedded", "few")
def test_compare_runs_it_unasked_with_its_own_oracle_alone(shipped, tmp_path, monkeypatch):
    monkeypatch.chdir(shipped)
    arms = {}
    for name in ("target", "draft"):
        argv = common(shipped, tmp_path / name)
        argv[argv.index("--oracle") + 1] = name
        assert (
            harness.script("compare", "", [*argv, "--num-prompts", "1", "--threads", str(torch.get_num_threads())]) == 0
        )
        arms[name] = list(json.loads((the_folder(tmp_path / name) / "summary.json").read_text())["arms"])
    assert arms == {"target": ["plain", "eagle3", "prompt_lookup"], "draft": ["plain", "prompt_lookup"]}


@pytest.mark.usefixtures("embedded", "few")
def test_a_script_without_a_head_says_that_none_ships(shipped, tmp_path):
    argv = common(shipped, tmp_path)
    with pytest.raises(SystemExit, match=r"medusa: give --head DIR, .*: none is shipped for "):
        harness.script("medusa", "", argv)


@pytest.mark.usefixtures("embedded")
def test_another_head_is_another_run(shipped):
    keys = [fingerprint({"oracle": "target"}, []), fingerprint({"oracle": "draft"}, [])]
    weights = shipped / "target-eagle3" / "model.safetensors"
    os.utime(weights, ns=(0, 1 + weights.stat().st_mtime_ns))
    assert fingerprint({"oracle": "target"}, []) != keys[0]
    assert fingerprint({"oracle": "draft"}, []) == keys[1]


def published() -> list[str]:
    return [name for name in head_names() if (EMBEDDED / name / "config.json").is_file()]


def test_what_ships_is_small_and_says_whose_it_is():
    """Whether the heads draft well is for ``tests/real``: their oracle does not ship."""
    models = {*embedded_names(), *PUBLISHED}
    for name in published():
        assert name in {head for model in models for head in heads_of(model).values()}, f"{name} names a known oracle"
        tensors = {}
        for path in (EMBEDDED / name).glob("*.safetensors"):
            with safe_open(path, "pt") as file:
                tensors |= {key: file.get_tensor(key).dtype for key in file.keys()}  # noqa: SIM118
        assert {dtype for dtype in tensors.values() if dtype.is_floating_point} == {torch.bfloat16}
        assert "embed_tokens.weight" not in tensors, "it borrows the oracle's"
        assert sum(path.stat().st_size for path in (EMBEDDED / name).iterdir()) < 12e6, name
