"""The sections of benchmarks/: the command that prints each, and the files that hold them."""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from experiments.bench.benchmark_figures import ROOT
from experiments.bench.page_layout import lay_out
from specdec.stats.report import FORM, MARKDOWN, processor

SAMPLED = "--temperature 0.8 --top-p 0.95 --rule coupled"
BESIDE = (
    "--strategies small_transformer prompt_lookup --peer transformers transformers:assisted "
    "transformers:assisted-heuristic transformers:lookup llama.cpp llama.cpp:lookup llama.cpp:bfloat16"
)
_SMOLLM2 = "python -m experiments.spec_bench --oracle smollm2 --arithmetic int8 --turns all"
# What ``make real`` measures SmolLM2 with.
_CONVERSATIONS = f"{_SMOLLM2} --file experiments/prompts/conversations.jsonl --max-new-tokens 128"
REAL = f"{_CONVERSATIONS} --strategies prompt_lookup small_transformer eagle3 cascade lookahead"
# Five arms at four rates: six minutes on two cores.
_LOAD = (
    "python -m experiments.load --oracle smollm2 --arithmetic int8 --prompts experiments/prompts/conversations.jsonl "
    "--arms prompt_lookup:3 small_transformer:2 small_transformer:4 small_transformer:4/8 --batch-size 8 "
    "--loads 0.3 0.6 0.9 1.2 --seconds 12 --goodput ttft:500 tpot:10"
)
# Its questions do not ship: docs/guides/spec-bench.md says where they are.
QUESTIONS = "question.jsonl"
_SPEC_BENCH = f"{_SMOLLM2} --file {QUESTIONS} --max-new-tokens 512"
_REJECTION = "--temperature 1 --rule rejection"
# As papers compare drafters: five tokens each, whatever pays.
_CHAINS = f"{_SPEC_BENCH} --per-category 8 --strategies small_transformer eagle3 block_drafter " + " ".join(
    f"--{name}-num-draft-tokens 5" for name in ("small-transformer", "eagle3", "block-drafter")
)
# File -> title of a section -> the command that prints it.
FILES: Mapping[str, Mapping[str, str]] = {
    "smollm2.md": {
        "SmolLM2 on conversations": REAL,
        "SmolLM2 beside transformers": (
            "python -m experiments.compare --oracle smollm2 --arithmetic int8 --turns all "
            "--prompts experiments/prompts/conversations.jsonl --num-prompts 12 --max-new-tokens 128 --strategies "
            "prompt_lookup small_transformer eagle3 --peer transformers transformers:lookup transformers:bfloat16"
        ),
        "SmolLM2 in bfloat16 beside transformers": (
            "python -m experiments.compare --oracle smollm2 --weights bfloat16 --turns all "
            "--prompts experiments/prompts/conversations.jsonl --num-prompts 12 --max-new-tokens 128 --strategies "
            "prompt_lookup small_transformer eagle3 --peer transformers:bfloat16"
        ),
        "Beside llama.cpp on the same file": "python -m experiments.bench.stored --rounds 5",
    },
    "spec-bench.md": {
        "Spec-Bench, greedy": f"{_SPEC_BENCH} --strategies suffix_automaton small_transformer eagle3 cascade",
        "Spec-Bench, T = 1": f"{_SPEC_BENCH} {_REJECTION} --strategies small_transformer eagle3 block_drafter",
        "Second turns": (
            "python -m experiments.studies.second_turns --arithmetic int8 --draft smol-draft "
            f"--prompts {QUESTIONS} --num-prompts 20"
        ),
    },
    "chains.md": {
        "Chains of 5, T = 1": f"{_CHAINS} {_REJECTION}",
        "Chains of 5, T = 1, block": f"{_CHAINS} --temperature 1 --rule block",
    },
    "every-strategy.md": {
        "Every strategy, greedy": f"{_SPEC_BENCH} --per-category 1",
        "Every strategy, T = 1": f"{_SPEC_BENCH} --per-category 1 {_REJECTION}",
        "Every strategy, batch 8": f"{_CONVERSATIONS} --batch-size 8",
        "Every strategy, batch 8, T = 1": f"{_CONVERSATIONS} --batch-size 8 {_REJECTION}",
    },
    "crossover.md": {
        "SmolLM2 by batch size": (
            "python -m experiments.studies.crossover --oracle smollm2 --arithmetic int8 "
            "--prompts experiments/prompts/conversations.jsonl"
        ),
    },
    "rules.md": {
        "Rules on SmolLM2": (
            "python -m experiments.studies.rules --oracle smollm2 --arithmetic int8 --model smol-draft "
            "--prompts experiments/prompts/conversations.jsonl --num-prompts 40"
        ),
    },
    "passes.md": {
        "Passes": "python -m experiments.bench.oracle --shapes 10m",
        "Passes of a shape of 110 M": (
            "python -m experiments.bench.oracle --shapes 110m --threads 2 --parts decode passes"
        ),
    },
    "steps.md": {"Steps outside the oracle": "python -m experiments.bench.engine"},
    "checkpoints.md": {
        "Bits per byte of the embedded checkpoints": "python -m oracles.factory.evaluate bits",
        "Loops in what the oracle writes": "python -m oracles.factory.evaluate text",
        "Agreement of the drafts with the oracle": "python -m oracles.factory.evaluate drafts",
        "Arithmetic": "python -m oracles.factory.evaluate arithmetic",
    },
    "limits.md": {
        "Limits of the oracle": "python -m experiments.studies.limits",
        "Limits of a shape of 110 M": (
            "python -m experiments.studies.limits --shape 110m --batch-sizes 1 --contexts 128 2048 8192 --prefill 2048 "
            "--out runs/limits-110m"
        ),
    },
    "inference-study.md": {
        "Inference study of SmolLM2": (
            "python -m experiments.studies.inference_stack --subject smollm2 --groups stack side --arms naive cache "
            "prefill 'compiled step' 'packed weights' 'native pass' 'draft model, 3 ahead' 'prompt lookup' "
            "transformers engine --batches 1 --rounds 5 --warm-ups 1 --gate-prompts 16"
        ),
        "Inference study": "python -m experiments.studies.inference_stack --groups stack side",
        "Inference study: ablations": "python -m experiments.studies.inference_stack --groups ablations --batches 1 32",
    },
    "precision.md": {"Precision": "python -m experiments.studies.precision"},
    "advice.md": {"Advice": "python -m experiments.advise --rule coupled"},
    "processes.md": {"Several processes": "python -m experiments.studies.processes"},
    "batches.md": {"Static and continuous batches": "python -m experiments.studies.batching"},
    "load.md": {"SmolLM2 under load": _LOAD},
    "prompt-lengths.md": {"Prompts of many lengths": "python -m experiments.studies.lengths"},
    "strategies.md": {
        "All strategies": "python -m experiments.compare",
        "All strategies, sampled": f"python -m experiments.compare {SAMPLED}",
        "All strategies, batch 8": "python -m experiments.compare --batch-size 8",
    },
    "peers.md": {
        "Beside transformers": f"python -m experiments.compare {BESIDE}",
        "Beside transformers, batch 8": f"python -m experiments.compare {BESIDE} --batch-size 8",
    },
    "trees.md": {
        "Trees by shape and size": "python -m experiments.studies.trees",
        "Trees by shape and size, sampled": f"python -m experiments.studies.trees {SAMPLED}",
    },
    "lookahead.md": {
        "Lookahead and its parts": "python -m experiments.lookahead",
        "Lookahead and its parts, sampled": f"python -m experiments.lookahead {SAMPLED}",
    },
    "staged.md": {
        "Staged drafts and the same model unstaged": "python -m experiments.staged",
        "Staged drafts and the same model unstaged, sampled": f"python -m experiments.staged {SAMPLED}",
    },
    "draft-lengths.md": {
        "Draft lengths that follow confidence": "python -m experiments.threshold",
        "Draft lengths that follow confidence, sampled": f"python -m experiments.threshold {SAMPLED}",
    },
}
# Tables that commands print and files leave out, whose readers have enough of others.
_BY_TASK = "Spec-Bench, decoding alone", "Spec-Bench, end to end"
LEFT_OUT: Mapping[str, Sequence[str]] = {"chains.md": ("Causes", *_BY_TASK), "every-strategy.md": ("Stages", *_BY_TASK)}
COMMANDS = {title: command for commands in FILES.values() for title, command in commands.items()}
FOLDER = ROOT / "benchmarks"


def read_sections(folder: Path = FOLDER) -> dict[str, str]:
    """Return title -> body of the second-level sections of all files."""
    return {title: body for name in FILES for title, body in _parts_of(folder / name)[1].items()}


def _parts_of(path: Path) -> tuple[str, dict[str, str]]:
    """Return what a file says before its first section, and title -> body; for an absent file, a heading."""
    text = path.read_text(encoding="utf-8") if path.exists() else f"# {next(iter(FILES[path.name]))}\n"
    front, *parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return front.strip(), {title: body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)}


def write_section(title: str, printed: str, folder: Path = FOLDER) -> None:
    """Write a section into its file; the other sections, and what comes before them, stay."""
    path = folder / next(name for name, commands in FILES.items() if title in commands)
    front, sections = _parts_of(path)
    sections[title] = lay_out(without(printed, LEFT_OUT.get(path.name, ())), front)
    ordered = [one for one in FILES[path.name] if one in sections]
    texts = [front, *(f"## {one}\n\n{sections[one]}" for one in ordered)]
    folder.mkdir(exist_ok=True)
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def without(printed: str, tables: Sequence[str]) -> str:
    """Return what was printed, without the third-level sections of these titles."""
    parts = re.split(r"^(?=### )", printed, flags=re.MULTILINE)
    return "".join(part for part in parts if part.partition("\n")[0].removeprefix("### ") not in tables).strip()


def run(command: str) -> str:
    """Return what a command printed.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    argv = [sys.executable, *shlex.split(command)[1:]]
    environment = {**os.environ, FORM: MARKDOWN}
    printed = subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return printed.strip()


def lacks(command: str) -> bool:
    """Tell whether a command reads questions that are not here."""
    return QUESTIONS in command.split() and not (ROOT / QUESTIONS).is_file()


def machine() -> str:
    """Return one line on the machine."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{processor()}, {os.cpu_count()} cores, {versions}"
