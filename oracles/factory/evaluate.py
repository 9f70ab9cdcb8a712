"""Print what checkpoints are worth, as Markdown tables: ``python -m oracles.factory.evaluate COMMAND``.

Commands: bits, text, drafts, arithmetic, inputs.

Figures are those of the split *test*; choices are made on *dev* (``--split dev``), so that *test* stays unseen. A
checkpoint is an embedded name or a directory. ``COMMAND --help`` lists a command's options.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from exactspec.parser import Parser, positive, refusing
from oracles.checkpoints.placement import check_device, checkpoint_place
from oracles.factory.arithmetic.problems import ANSWER_LENGTH, NUM_HELD_OUT
from oracles.factory.evaluation.commands import arithmetic, bits, drafts, inputs, text
from oracles.factory.training.allocator import keep_freed_memory

SHARDS = Path("oracles/factory/dialogues/smollm2")
CODE_DRAFTS = ["code-draft", "code-draft-tiny"]


def _add_common(parser: argparse.ArgumentParser, oracle: str) -> None:
    add = parser.add_argument
    add("--oracle", default=oracle, help="checkpoint (default %(default)s)")
    add("--threads", type=positive, help="CPU threads, if not torch's own number")
    add("--device", default="cpu", help="where the models run (default %(default)s)")


def _add_drafts(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    default = f"checkpoints of draft models (default {' '.join(names)})"
    parser.add_argument("--drafts", nargs="*", default=names, metavar="DRAFT", help=default)


def _add_text(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--split", choices=("dev", "test"), default="test", help="of the corpus; choose on dev (default %(default)s)")
    add("--max-bytes", type=positive, default=2_000_000, help="how much of it, in whole files (default %(default)s)")


def _add_ngram(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ngram-bytes", type=int, default=50_000_000, help="of train, for the 5-gram model (default %(default)s)"
    )


def _add_writing(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--prompts", type=Path, help="JSONL with prompt and reference (for test the shipped one, for dev excerpts)")
    add("--num-prompts", type=positive, default=120, help="how many (default %(default)s)")
    add("--tokens", type=positive, default=128, help="written after each (default %(default)s)")
    add("--batch-size", type=positive, default=8, help="prompts decoded together (default %(default)s)")


def _bits_options(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "code")
    _add_drafts(parser, CODE_DRAFTS)
    _add_text(parser)
    _add_ngram(parser)


def _text_options(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "code")
    _add_text(parser)
    _add_writing(parser)
    parser.add_argument("--show", type=int, default=0, help="print the first continuations (default %(default)s)")


def _drafts_options(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "code")
    _add_drafts(parser, CODE_DRAFTS)
    parser.add_argument("--heads", nargs="*", default=["code-exit"], metavar="HEAD", help="exit heads (code-exit)")
    _add_text(parser)
    _add_ngram(parser)
    _add_writing(parser)


def _arithmetic_options(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "arithmetic")
    _add_drafts(parser, ["arithmetic-draft"])
    add = parser.add_argument
    add("--num-problems", type=positive, default=NUM_HELD_OUT, help="of those held out (default %(default)s)")
    add("--batch-size", type=positive, default=64, help="problems decoded together (default %(default)s)")
    parser.set_defaults(tokens=ANSWER_LENGTH)


def _inputs_options(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "smollm2")
    add = parser.add_argument
    add("--shards", type=Path, default=SHARDS, help="conversations that the oracle wrote (default %(default)s)")
    add("--split", choices=("dev", "test"), default="dev", help="of them (default %(default)s)")
    add("--num-texts", type=positive, default=16, help="first answers that are read (default %(default)s)")


COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], None], Callable[[argparse.ArgumentParser], None]]] = {
    "bits": (bits, _bits_options),
    "text": (text, _text_options),
    "drafts": (drafts, _drafts_options),
    "arithmetic": (arithmetic, _arithmetic_options),
    "inputs": (inputs, _inputs_options),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one of ``COMMANDS``."""
    parser = Parser(__doc__)
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for name, (function, add_options) in COMMANDS.items():
        own = commands.add_parser(name, help=function.__doc__, description=function.__doc__, allow_abbrev=False)
        add_options(own)
        own.set_defaults(run=function)
    args = parser.parse_args(argv)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    keep_freed_memory()
    with refusing("oracles.factory.evaluate"):
        check_device(checkpoint_place(args.device))
        args.run(args)


if __name__ == "__main__":
    main()
