"""Train what drafts for an oracle: a head of some ``--kind`` that reads its layers, or a small transformer.

It learns the oracle's whole law of the tokens that it will draft: an EAGLE-3 head running on over its own features, a
DSpark head in blocks after many anchors of a text, Medusa's heads side by side, exit heads after some of the oracle's
layers each, a small transformer token by token. It learns on text that the oracle wrote: ``--own-text`` of
``oracles.factory.own_text``, or ``--shards`` of conversations. Features and laws are computed anew from the text, once
for all drafts of a window. A head is written to OUT/head, in the format of ``speculators`` or of Medusa's authors,
which ``oracles.load_head`` opens (exit heads: ours, in OUT/head/K). A draft model is written to OUT/draft_model, for
``oracles.load``: it reads all ids through the oracle's embeddings, and writes only the most frequent.
"""

import argparse
import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from tqdm import tqdm

from exactspec.ending import as_program
from exactspec.parser import Parser, positive
from oracles.checkpoints.loading import load_tokenizer, load_trainable
from oracles.checkpoints.placement import Arithmetic
from oracles.checkpoints.tokenization import end_of_text_id
from oracles.factory.dialogues.shards import Shards
from oracles.factory.dialogues.writing import begin_of
from oracles.factory.training.head_distillation import HeadDistillation
from oracles.factory.training.head_kinds import KINDS
from oracles.factory.training.head_losses import DSPARK_LOSS, LOSSES, read_mixture
from oracles.factory.training.head_text import HeadText, dialogues, own_text
from oracles.factory.training.recipes import Recipe
from oracles.factory.training.training_arguments import add_run_arguments, run_training, training
from oracles.factory.training.training_text import check_text_ids
from oracles.factory.training.windows import WindowPlan, Windows
from oracles.quantisation import FORMATS
from specdec.stats import Table
from specdec.stats.report import show


def _parser() -> argparse.ArgumentParser:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--kind", choices=tuple(KINDS), default="eagle3", help="what to train (%(default)s)")
    add("--oracle", default="code", help="oracle that it drafts for, as oracles.load takes it (%(default)s)")
    add("--verifier", help="name of the oracle in config.json, for servers (eagle3, dspark, medusa: as --oracle)")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--own-text", type=Path, help="safetensors of text that the oracle wrote")
    told = "folders of conversations that the oracle wrote; measured on what the first one holds out"
    text.add_argument("--shards", type=Path, nargs="+", metavar="FOLDER", help=told)
    _add_shape(parser)
    add(
        "--init", type=Path, metavar="FOLDER", help="begin with the weights and ids of a finished one of the same shape"
    )
    told = f"loss, a sum of {', '.join(LOSSES)}, from the oracle's whole law or the text (kl; dspark: {DSPARK_LOSS})"
    add("--loss", metavar="SUM", help=told)
    add("--discount", type=float, help="factor by which each further token counts less (eagle3, dspark, medusa: 0.8)")
    add(
        "--served",
        choices=get_args(Arithmetic),
        help="take features and laws from the serving pass, on a CPU, in this arithmetic (from the training pass)",
    )
    add("--rate", type=float, default=4e-3, help="peak rate; twice that for a draft model's matrices (%(default)s)")
    add(
        "--fall", type=float, default=0.4, help="share of the run, at its end, over which rates fall to 0 (%(default)s)"
    )
    add("--window", type=positive, default=512, help="tokens of a window (%(default)s)")
    add("--step-tokens", type=positive, default=4096, help="tokens of a step (%(default)s)")
    add("--dev-windows", type=positive, default=16, help="held-out windows to measure on (%(default)s)")
    add("--measure-every", type=positive, default=100, help="steps between two measurements (%(default)s)")
    add_run_arguments(parser, Path("runs") / "head", steps=600)
    return parser


def _add_shape(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is trained; which of them a kind has is for ``KINDS`` to say."""
    add = parser.add_argument
    add(
        "--num-draft-tokens", type=positive, metavar="K",
        help="tokens of a draft that it learns: steps unrolled, a block, or heads (eagle3: 3, dspark: 6, medusa: 4)",
    )  # fmt: skip
    add("--layers", type=int, nargs="+", metavar="L", help="layers whose outputs it reads (EAGLE-3's usual three)")
    told = "format to round its linear layers' weights to in every product, as serving will (none)"
    add("--learn-as", choices=tuple(FORMATS), help=told)
    told = "it writes the N most frequent ids of the text (all; draft_model: 8192)"
    add("--vocab-size", type=positive, metavar="N", help=told)
    add("--lm-head", choices=("oracle", "own"), help="whose rows its head has; its own are stored (oracle)")
    add("--intermediate-size", type=positive, help="width of its MLPs (the oracle's; draft_model: 1024)")
    add("--hidden-size", type=positive, metavar="H", help="width of a draft model, a multiple of 64 (384)")
    told = "layers of its own (dspark, draft_model: 2; medusa: residual blocks, 1)"
    add("--own-layers", type=positive, metavar="N", help=told)
    add("--markov-rank", type=positive, metavar="R", help="rank of its Markov head (dspark: 16)")
    add("--anchors", type=positive, metavar="N", help="most blocks that begin in a window (dspark: 128)")
    add("--num-layers", type=positive, nargs="+", metavar="K", help="layers below each of several exit heads (1 2 3)")
    add("--inner-size", type=positive, help="width of an exit head's adapter (768)")
    add("--mask-id", type=int, metavar="ID", help="mask id at the places of a block (dspark: the text's rarest id)")


def _texts(args: argparse.Namespace) -> tuple[HeadText, HeadText]:
    """Return what is learned on, and what is held out."""
    tokenizer = load_tokenizer(args.oracle)
    if args.own_text is not None:
        end = end_of_text_id(tokenizer)
        return own_text(args.own_text, end, held_out=False), own_text(args.own_text, end, held_out=True)
    shards, begin = [Shards(folder) for folder in args.shards], begin_of(tokenizer)
    learned = chain.from_iterable(one.split("train") for one in shards)
    return dialogues(learned, begin), dialogues(shards[0].split("dev"), begin)


def _complete(args: argparse.Namespace) -> None:
    """Fill in the defaults of a kind; refuse options of other kinds, and sizes that do not fit."""
    own = KINDS[args.kind].options
    if args.init is not None and "vocab_size" in own:
        own = {**own, "vocab_size": None}  # the folder's
    for name in sorted({option for kind in KINDS.values() for option in kind.options}):
        value, option = getattr(args, name), name.replace("_", "-")
        if value is not None and name not in own:
            kinds = ", ".join(kind for kind, known in KINDS.items() if name in known.options)
            raise ValueError(f"--{option} is of --kind {kinds}: leave it out with --kind {args.kind}")
        setattr(args, name, own.get(name) if value is None else value)
    # What a draft model says of a token does not depend on where its draft began; nor do exit heads say further ones.
    args.num_draft_tokens = args.num_draft_tokens or 1
    args.discount = 1.0 if args.discount is None else args.discount
    for name, most in (("rate", math.inf), ("discount", 1.0), ("fall", 1.0)):
        if not 0 < getattr(args, name) <= most:
            raise ValueError(f"--{name} is {getattr(args, name)}; give a number above 0, at most {most}")
    if args.step_tokens % args.window:
        raise ValueError(f"--step-tokens is {args.step_tokens}; give a multiple of --window {args.window}")
    if args.num_draft_tokens >= args.window:
        raise ValueError(
            f"--num-draft-tokens is {args.num_draft_tokens}; give 1..{args.window - 1}, less than a window"
        )
    if "bce" in read_mixture(args.loss) and not KINDS[args.kind].has_confidence:
        telling = ", ".join(name for name, kind in KINDS.items() if kind.has_confidence)
        raise ValueError(f"--loss {args.loss}: bce is of a head that tells confidences: --kind {telling}")


def measure(task: HeadDistillation, text: HeadText, places: Tensor, num_done: int) -> dict[str, float]:
    """Return the acceptance on places ``[N, T + 1]`` of held-out text after so many steps, and print it."""
    found = {name: round(value, 4) for name, value in task.acceptance(text, places).items()}
    tqdm.write(f"step {num_done}: " + ", ".join(f"{name} {value:.3f}" for name, value in found.items()))
    return found


def by_kind(task: HeadDistillation, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the acceptance on held-out conversations of each kind; a kind too short for a window has none."""
    begin, held_out = begin_of(load_tokenizer(args.oracle)), list(Shards(args.shards[0]).split("dev"))
    rows = []
    for kind in sorted({one.kind for one in held_out}):
        text = dialogues((one for one in held_out if one.kind == kind), begin)
        enough = len(text.ids) > args.window
        found = task.acceptance(text, text.spread(args.dev_windows, args.window)) if enough else {}
        rows.append({"of": kind, "tokens": int(text.counts.sum()), **found})
    return rows


def train(args: argparse.Namespace) -> None:
    """Train to the end, or to ``--stop-after``, and write the head."""
    _complete(args)
    oracle = load_trainable(args.oracle, dtype="float32", device=args.device)
    text, held_out = _texts(args)
    for part in (text, held_out):
        check_text_ids(part.ids, oracle.vocab_size)
    print(f"{len(text.ids):,} tokens, {int(text.counts.sum()):,} of them count; {len(held_out.ids):,} held out")
    kind = KINDS[args.kind]
    pupil = kind.make(args, oracle, text)
    if args.init is not None:
        pupil.begin(args.init, kind.meaning)
    print(f"it has {sum(part.numel() for part in pupil.task.model.parameters()):,} parameters", flush=True)
    plan = WindowPlan(args.step_tokens, args.window, args.window, long_share=0.0)
    windows = Windows(plan, torch.arange(len(text.ids)), args.seed)
    # A draft model begins with embeddings that fit, and with layers that know nothing.
    matrix_rate = args.rate * (2 if args.kind == "draft_model" else 1)
    recipe = Recipe(oracle.config, args.steps, matrix_rate=matrix_rate, other_rate=args.rate, decay_share=args.fall)
    places = held_out.spread(args.dev_windows, args.window)

    measured = set[int]()

    def watch(num_done: int) -> dict[str, float]:
        if num_done % args.measure_every and num_done != args.steps:
            return {}
        measured.add(num_done)
        return measure(pupil.task, held_out, places, num_done)

    if run_training(recipe, windows, pupil.task, args, watch):
        if args.steps not in measured:  # resumed after its last step
            watch(args.steps)
        folder = args.out / ("draft_model" if args.kind == "draft_model" else "head")
        pupil.save(folder)
        if args.shards is not None:
            show([Table("held out, by kind", by_kind(pupil.task, args)), ""])
        print(f"it is in {folder}")


def main(argv: Sequence[str] | None = None) -> None:
    """Train a head, and say how often its drafts would be accepted."""
    args = _parser().parse_args(argv)
    with training(args, "train_head"):
        train(args)


if __name__ == "__main__":
    as_program(main)
