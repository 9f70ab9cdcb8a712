"""Write the files of benchmarks/: every table under the command that printed it.

The strategies' pages quote these figures; ``--pages`` only copies them there. What a file says before its first section
is written by hand and stays. Commands run one after the other, each in its own process; nothing else should run on the
machine meanwhile.
"""

import sys
from collections.abc import Sequence

from exactspec.ending import as_program
from exactspec.parser import Parser
from experiments.bench.benchmark_figures import ROOT, write_pages
from experiments.bench.sections import COMMANDS, QUESTIONS, lacks, machine, read_sections, run, write_section


def main(argv: Sequence[str] | None = None) -> None:
    """Run the commands and write a section after each of them, so that nothing is lost on interruption."""
    parser = Parser(__doc__)
    help_text = f"sections to measure again; the others stay as they are; titles: {'; '.join(COMMANDS)}"
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", choices=COMMANDS, nargs="+", metavar="TITLE", help=help_text)
    what.add_argument("--pages", action="store_true", help="measure nothing; only write the figures that pages quote")
    args = parser.parse_args(argv)
    asked = () if args.pages else args.only or COMMANDS
    if absent := [title for title in asked if lacks(COMMANDS[title])]:
        words = f"{', '.join(absent)}: {QUESTIONS} of Spec-Bench is not in {ROOT}, see docs/guides/spec-bench.md"
        if args.only:
            parser.error(words)
        print("left out:", words, file=sys.stderr)
    for title in asked:
        command = COMMANDS[title]
        if title in absent:
            continue
        print(command, file=sys.stderr)
        write_section(title, f"`{command}` ({machine()})\n\n{run(command)}")
    sections = read_sections()
    missing = [title for title in COMMANDS if title not in sections]
    if missing:
        print("figures not written, benchmarks/ lacks:", "; ".join(missing), file=sys.stderr)
    else:
        print("figures written:", *write_pages(sections), file=sys.stderr)


if __name__ == "__main__":
    as_program(main)
