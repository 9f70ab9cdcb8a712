"""Write held-out problems as prompts for ``arithmetic``: ``python -m experiments.prompts.make_arithmetic``."""

import json
from pathlib import Path

from exactspec.ending import as_program
from exactspec.parser import Parser
from oracles.factory.arithmetic.problems import Problem, split

# Studies take all of them from ``split``; a file of prompts needs some.
EVERY = 8
OUT = Path(__file__).with_name("arithmetic.jsonl")


def rows() -> list[dict[str, str]]:
    """Return prompt and answer of one held-out problem in ``EVERY``, in the order of their draw."""
    problems = [Problem.of_number(int(number)) for number in split()[1][::EVERY]]
    return [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]


def main() -> None:
    """Write the problems as JSON lines."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="file to write (the shipped one)")
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    found = rows()
    out.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    print(f"{len(found):,} problems in {out}")


if __name__ == "__main__":
    as_program(main)
