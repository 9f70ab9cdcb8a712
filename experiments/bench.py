"""Write the files of benchmarks/: every table under the command that printed it.

The strategies' pages quote them; ``--pages`` alone puts what they hold there. What a file says before
its first section is written by hand and stays. Each command runs in a process of its own, one after the other; nothing
else should run on the machine meanwhile.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from exactspec.parser import Parser
from experiments.figures import ROOT, write_pages
from experiments.page_layout import lay_out
from specdec.report import processor

SAMPLED = "--temperature 0.8 --top-p 0.95"
BESIDE = (
    "--strategies small_transformer prompt_lookup --peer transformers transformers:assisted "
    "transformers:assisted-heuristic transformers:lookup llama.cpp llama.cpp:lookup llama.cpp:bfloat16"
)
# File -> title of a section -> the command that prints it.
FILES: Mapping[str, Mapping[str, str]] = {
    "passes.md": {
        "Passes": "python -m experiments.bench_oracle --shapes 10m",
        "Passes of a shape of 110 M": (
            "python -m experiments.bench_oracle --shapes 110m --threads 2 --parts decode passes bandwidth curve prefill"
        ),
    },
    "steps.md": {"Steps outside the oracle": "python -m experiments.bench_engine"},
    "checkpoints.md": {
        "Bits per byte of the embedded checkpoints": "python -m oracles.evaluate bits",
        "Loops in what the oracle writes": "python -m oracles.evaluate text",
        "Agreement of the drafts with the oracle": "python -m oracles.evaluate drafts",
        "Arithmetic": "python -m oracles.evaluate arithmetic",
    },
    "limits.md": {
        "Limits of the oracle": "python -m experiments.limits",
        "Limits of a shape of 110 M": (
            "python -m experiments.limits --shape 110m --batch-sizes 1 --contexts 128 2048 8192 --prefill 2048 "
            "--out runs/limits-110m"
        ),
    },
    "inference-study.md": {
        "Inference study": "python -m experiments.inference_stack --groups stack side",
        "Inference study: ablations": "python -m experiments.inference_stack --groups ablations --batches 1 32",
    },
    "precision.md": {"Precision": "python -m experiments.precision"},
    "advice.md": {"Advice": "python -m experiments.advise"},
    "batches.md": {"Static and continuous batches": "python -m experiments.batching"},
    "prompt-lengths.md": {"Prompts of many lengths": "python -m experiments.lengths"},
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
        "Trees by shape and size": "python -m experiments.trees",
        "Trees by shape and size, sampled": f"python -m experiments.trees {SAMPLED}",
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
COMMANDS = {title: command for commands in FILES.values() for title, command in commands.items()}
FOLDER = ROOT / "benchmarks"


def read_sections(folder: Path = FOLDER) -> dict[str, str]:
    """Return title -> body of the second-level sections of all files."""
    return {title: body for name in FILES for title, body in _parts_of(folder / name)[1].items()}


def _parts_of(path: Path) -> tuple[str, dict[str, str]]:
    """Return what a file says before its first section, and title -> body; of a file that is not there its name."""
    text = path.read_text(encoding="utf-8") if path.exists() else f"# {path.stem.capitalize()}\n"
    front, *parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return front.strip(), {title: body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)}


def write_section(title: str, printed: str, folder: Path = FOLDER) -> None:
    """Write a section into its file, in which all others and what stands before them stay."""
    path = folder / next(name for name, commands in FILES.items() if title in commands)
    front, sections = _parts_of(path)
    sections[title] = lay_out(printed, front)
    ordered = [one for one in FILES[path.name] if one in sections]
    texts = [front, *(f"## {one}\n\n{sections[one]}" for one in ordered)]
    folder.mkdir(exist_ok=True)
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def run(command: str) -> str:
    """Return what a command printed.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    argv = [sys.executable, *command.split()[1:]]
    printed = subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return printed.strip()


def machine() -> str:
    """Return one line on the machine."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{processor()}, {os.cpu_count()} cores, {versions}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the commands and write a section after each of them, so that nothing is lost on interruption."""
    parser = Parser(__doc__)
    help_text = f"sections to measure again, the others stay; titles: {'; '.join(COMMANDS)}"
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", choices=COMMANDS, nargs="+", metavar="TITLE", help=help_text)
    what.add_argument("--pages", action="store_true", help="measure nothing; write the figures of the documents")
    args = parser.parse_args(argv)
    for title in () if args.pages else args.only or COMMANDS:
        command = COMMANDS[title]
        print(command, file=sys.stderr)
        write_section(title, f"`{command}` ({machine()})\n\n{run(command)}")
    sections = read_sections()
    missing = [title for title in COMMANDS if title not in sections]
    if missing:
        print("figures not written, benchmarks/ lacks:", "; ".join(missing), file=sys.stderr)
    else:
        print("figures written:", *write_pages(sections), file=sys.stderr)


if __name__ == "__main__":
    main()
