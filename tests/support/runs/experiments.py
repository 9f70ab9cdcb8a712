"""Tiny random checkpoints, and options of scripts that run on them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Tokenizer

import oracles
from experiments.harness import running, study
from experiments.strategies import STRATEGIES
from oracles.checkpoints.embedded_folders import EMBEDDED
from oracles.factory.training.export import export_checkpoint
from tests.support.models.eagle3_heads import Layout, write_head
from tests.support.models.head_folders import block_folder, medusa_folder

SHIPPED = study.without_full_collections


@contextmanager
def quick_runs() -> Iterator[None]:
    """Have runs not collect garbage first, nor ask again what stays: versions and the commit."""
    provenance = import_module("specdec.stats.report.provenance")  # where a function has its module's name
    asked = {name: cache(getattr(provenance, name)) for name in ("version_of", "_git")}
    with patch.object(study, "without_full_collections", nullcontext), patch.multiple(provenance, **asked):
        yield


@contextmanager
def few_strategies(*kept: str) -> Iterator[None]:
    """Leave ``compare`` these strategies for a while; their order is that of the arms."""
    whole = dict(STRATEGIES)
    for name in whole:
        if name not in kept:
            del STRATEGIES[name]
    yield
    STRATEGIES.clear()
    STRATEGIES.update(whole)


TEXT = "def add(a, b):\n    return a + b\n\n\ndef add_all(a, b, c):\n    return a + b + c\n"


def write_checkpoints(folder: Path) -> Path:
    """Return the folder with a target, a draft, a text to train on, and prompts of two kinds."""
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "code" / "tokenizer.json"))
    for name, width, seed in (("target", 32, 0), ("draft", 16, 1)):
        config = oracles.TransformerConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=width, num_layers=2, num_heads=2,
            intermediate_size=width, max_context=256, tie_embeddings=True,
        )  # fmt: skip
        export_checkpoint(oracles.Transformer(config, seed=seed).state_dict(), config, tokenizer, folder / name)
    write_head(folder / "head", oracles.load(folder / "target"), Layout("specforge", (0, 1, 1)), dtype=torch.float32)
    block_folder(folder / "block", tokenizer.get_vocab_size(), layout="dflash", hidden_size=32)
    medusa_folder(folder / "medusa", tokenizer.get_vocab_size(), layout="original", width=32)
    (folder / "text.py").write_text(TEXT * 3, encoding="utf-8")
    rows = [{"id": f"p{i}", "kind": "ab"[i % 2], "prompt": TEXT * (i + 1)} for i in range(4)]
    write_rows(folder / "prompts.jsonl", rows)
    return folder


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write a JSON object a line, and return the file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def common(checkpoints: Path, out: Path) -> list[str]:
    names = {"--oracle": checkpoints / "target", "--prompts": checkpoints / "prompts.jsonl", "--out": out}
    return [*(str(part) for pair in names.items() for part in pair), "--max-new-tokens", "10"]


def own(checkpoints: Path, name: str, prefix: str = "") -> list[str]:
    model = [f"--{prefix}model", str(checkpoints / "draft")]
    text = [f"--{prefix}train-on", str(checkpoints / "text.py")]
    options = {
        "small_transformer": model,
        "tree": model,
        "other_vocabulary": model,
        "early_exit": [f"--{prefix}head", "none"],
        "eagle3": [f"--{prefix}head", str(checkpoints / "head")],
        "block_drafter": [f"--{prefix}head", str(checkpoints / "block")],
        "medusa": [f"--{prefix}head", str(checkpoints / "medusa")],
        "quantized": [f"--{prefix}draft-weights", "int8"],
        "ngram": text,
        "prompt_lookup": [f"--{prefix}max-ngram", "2"],
        "suffix_automaton": [f"--{prefix}min-ngram", "2"],
        "lookahead": [f"--{prefix}ngram", "3"],
        "merged": text,
        "cascade": text,
        "staged": [*model, *text, f"--{prefix}width", "2"],
        "threshold": [*model, *text],
    }
    return options[name]


def all_own(checkpoints: Path, names: Iterable[str]) -> list[str]:
    """Return the options of strategies side by side."""
    return [option for name in names for option in own(checkpoints, name, f"{name.replace('_', '-')}-")]


def the_folder(out: Path) -> Path:
    (folder,) = out.iterdir()
    return folder


def read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def summary_of(out: Path) -> dict[str, Any]:
    """Return the summary of the only run below a folder."""
    return read_json(the_folder(out) / "summary.json")


LLAMA = ["llama.cpp", "llama.cpp:lookup", "llama.cpp:bfloat16"]


def compared(folder: Path, out: Path, peers: Sequence[str], *more: str) -> dict[str, Any]:
    """Return the summary of a comparison with peers."""
    argv = [*common(folder, out), "--strategies", "prompt_lookup", "--peer", *peers, *more]
    assert running.script("compare", "", argv) == 0
    return summary_of(out)


GRID = """
experiment = "prompt_lookup"

[options]
oracle = "{oracle}"
prompts = "{prompts}"
max-new-tokens = {new}

[grid]
num-draft-tokens = [1, 2]
temperature = [0, 0.8]
"""


def a_file(folder: Path, checkpoints: Path, new: int = 6, text: str = GRID) -> Path:
    path = folder / "grid.toml"
    names = {"oracle": checkpoints / "target", "prompts": checkpoints / "prompts.jsonl"}
    path.write_text(text.format(new=new, **names), encoding="utf-8")
    return path


def table_rows(printed: str, title: str) -> list[dict[str, str]]:
    """Return the rows of the table under a title."""
    section = printed.split(f"### {title}\n")[1].split("\n###")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    names, _, *body = ([cell.strip() for cell in line[1:-1].split(" | ")] for line in lines)
    return [dict(zip(names, cells, strict=True)) for cells in body]
