"""Write BENCHMARKS.md: every table under the command that printed it.

The README and the strategies' pages quote it; ``--pages`` alone puts what it holds into them. Each command runs in a
process of its own, one after the other; nothing else should run on the machine meanwhile.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from exactspec.parser import Parser
from experiments.figures import write_pages
from specdec.report import processor

SAMPLED = "--temperature 0.8 --top-p 0.95"
BESIDE = (
    "--strategies small_transformer prompt_lookup --peer transformers transformers:assisted "
    "transformers:assisted-heuristic transformers:lookup llama.cpp llama.cpp:lookup llama.cpp:bfloat16"
)
COMMANDS = {
    "Passes": "python -m experiments.bench_oracle --shapes 10m",
    "Passes of a shape of 110 M": (
        "python -m experiments.bench_oracle --shapes 110m --threads 2 --parts decode passes bandwidth curve prefill"
    ),
    "Steps outside the oracle": "python -m experiments.bench_engine",
    "Bits per byte of the embedded checkpoints": "python -m oracles.evaluate bits",
    "Loops in what the oracle writes": "python -m oracles.evaluate text",
    "Agreement of the drafts with the oracle": "python -m oracles.evaluate drafts",
    "Arithmetic": "python -m oracles.evaluate arithmetic",
    "Limits of the oracle": "python -m experiments.limits",
    "Limits of a shape of 110 M": (
        "python -m experiments.limits --shape 110m --batch-sizes 1 --contexts 128 2048 8192 --prefill 2048 "
        "--out runs/limits-110m"
    ),
    "Inference study": "python -m experiments.inference_stack --groups stack side",
    "Inference study: ablations": "python -m experiments.inference_stack --groups ablations --batches 1 32",
    "Precision": "python -m experiments.precision",
    "Advice": "python -m experiments.advise",
    "Static and continuous batches": "python -m experiments.batching",
    "Prompts of many lengths": "python -m experiments.lengths",
    "All strategies": "python -m experiments.compare",
    "All strategies, batch 8": "python -m experiments.compare --batch-size 8",
    "Beside transformers": f"python -m experiments.compare {BESIDE}",
    "Beside transformers, batch 8": f"python -m experiments.compare {BESIDE} --batch-size 8",
    "All strategies, sampled": f"python -m experiments.compare {SAMPLED}",
    "Trees by shape and size": "python -m experiments.trees",
    "Trees by shape and size, sampled": f"python -m experiments.trees {SAMPLED}",
    "Lookahead and its parts": "python -m experiments.lookahead",
    "Lookahead and its parts, sampled": f"python -m experiments.lookahead {SAMPLED}",
    "Staged drafts and the same model unstaged": "python -m experiments.staged",
    "Staged drafts and the same model unstaged, sampled": f"python -m experiments.staged {SAMPLED}",
    "Draft lengths that follow confidence": "python -m experiments.threshold",
    "Draft lengths that follow confidence, sampled": f"python -m experiments.threshold {SAMPLED}",
}
PATH = Path(__file__).parent.parent / "BENCHMARKS.md"
INTRODUCTION = """# Benchmarks

Written by `make bench` (`python -m experiments.bench`): every table stands under the command that printed it. Times are
ratios or medians of arms interleaved in one process; they hold for the machine named with them.
"""


def read_sections(text: str) -> dict[str, str]:
    """Return title -> body of the second-level sections."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return {title.strip(): body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)}


def run(command: str) -> str:
    """Return what a command printed.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    argv = [sys.executable, *command.split()[1:]]
    printed = subprocess.run(argv, cwd=PATH.parent, check=True, stdout=subprocess.PIPE, text=True).stdout
    return printed.strip()


def machine() -> str:
    """Return one line on the machine."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{processor()}, {os.cpu_count()} cores, {versions}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the commands and write the file after each of them, so that nothing is lost on interruption."""
    parser = Parser(__doc__)
    help_text = f"sections to measure again, the others stay; titles: {'; '.join(COMMANDS)}"
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", choices=COMMANDS, nargs="+", metavar="TITLE", help=help_text)
    what.add_argument("--pages", action="store_true", help="measure nothing; write the figures of the documents")
    args = parser.parse_args(argv)
    sections = read_sections(PATH.read_text()) if PATH.exists() else {}
    for title in () if args.pages else args.only or COMMANDS:
        command = COMMANDS[title]
        print(command, file=sys.stderr)
        sections[title] = f"`{command}` ({machine()})\n\n{run(command)}"
        ordered = [t for t in COMMANDS if t in sections]
        PATH.write_text(INTRODUCTION + "".join(f"\n## {t}\n\n{sections[t]}\n" for t in ordered))
    missing = [title for title in COMMANDS if title not in sections]
    if missing:
        print("figures not written, BENCHMARKS.md lacks:", "; ".join(missing), file=sys.stderr)
    else:
        print("figures written:", *write_pages(sections), file=sys.stderr)


if __name__ == "__main__":
    main()
