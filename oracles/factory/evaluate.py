"""Print what checkpoints are worth, as Markdown tables: ``python -m oracles.factory.evaluate COMMAND``.

Commands: bits, text, drafts, arithmetic.

Figures are of the split *test*; choices are made on *dev* (``--split dev``), so that *test* stays unseen. A checkpoint
is an embedded name or a directory. ``COMMAND --help`` lists a command's options.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from exactspec.ending import as_program
from exactspec.parser import Parser, positive, refusing
from oracles.checkpoints.placement import check_device, checkpoint_place
from oracles.factory.arithmetic.problems import ANSWER_LENGTH, NUM_HELD_OUT
from oracles.factory.evaluation import commands
from oracles.factory.training.allocator import keep_freed_memory
from oracles.factory.training.training_arguments import add_threads, take_threads

CODE_DRAFTS = ["code-draft", "code-draft-tiny"]
# Every option, said once; a command may have another default.
OPTIONS: dict[str, dict[str, Any]] = {
    "oracle": {"help": "checkpoint (default %(default)s)"},
    "device": {"default": "cpu", "help": "where the models run (default %(default)s)"},
    "drafts": {"nargs": "*", "metavar": "DRAFT", "help": "checkpoints of draft models (those that ship)"},
    "heads": {"nargs": "*", "metavar": "HEAD", "default": ["code-exit"], "help": "exit heads (code-exit)"},
    "split": {"choices": ("dev", "test"), "default": "test", "help": "split of the text (default %(default)s)"},
    "max-bytes": {"type": positive, "default": 2_000_000, "help": "bytes of it, in whole files (default %(default)s)"},
    "ngram-bytes": {
        "type": int,
        "default": 50_000_000,
        "help": "bytes of train for the 5-gram model (default %(default)s)",
    },
    "prompts": {"type": Path, "help": "JSONL with prompt and reference (the shipped one; for dev excerpts)"},
    "num-prompts": {"type": positive, "default": 120, "help": "number of prompts (default %(default)s)"},
    "tokens": {"type": positive, "default": 128, "help": "tokens written after each (default %(default)s)"},
    "batch-size": {"type": positive, "default": 8, "help": "prompts decoded together (default %(default)s)"},
    "show": {"type": int, "default": 0, "help": "print the first N continuations (default %(default)s)"},
    "num-problems": {
        "type": positive,
        "default": NUM_HELD_OUT,
        "help": "number of held-out problems (default %(default)s)",
    },
}
EVERY = ("oracle", "device")
TEXT, WRITING = ("split", "max-bytes"), ("prompts", "num-prompts", "tokens", "batch-size")
# What each command runs, the options that it has beside those of every one, and its own defaults.
COMMANDS: dict[str, tuple[Callable[..., None], tuple[str, ...], dict[str, Any]]] = {
    "bits": (commands.bits, ("drafts", *TEXT, "ngram-bytes"), {"oracle": "code", "drafts": CODE_DRAFTS}),
    "text": (commands.text, (*TEXT, *WRITING, "show"), {"oracle": "code"}),
    "drafts": (
        commands.drafts,
        ("drafts", "heads", *TEXT, "ngram-bytes", *WRITING),
        {"oracle": "code", "drafts": CODE_DRAFTS},
    ),
    "arithmetic": (
        commands.arithmetic,
        ("drafts", "num-problems", "batch-size"),
        {"oracle": "arithmetic", "drafts": ["arithmetic-draft"], "batch_size": 64, "tokens": ANSWER_LENGTH},
    ),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one of ``COMMANDS``."""
    parser = Parser(__doc__)
    each = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for name, (function, options, defaults) in COMMANDS.items():
        own = each.add_parser(name, help=function.__doc__, description=function.__doc__, allow_abbrev=False)
        for option in (*EVERY, *options):
            own.add_argument(f"--{option}", **OPTIONS[option])
        add_threads(own)
        own.set_defaults(run=function, **defaults)
    args = parser.parse_args(argv)
    take_threads(args)
    keep_freed_memory()
    with refusing("oracles.factory.evaluate"):
        check_device(checkpoint_place(args.device))
        args.run(args)


if __name__ == "__main__":
    as_program(main)
