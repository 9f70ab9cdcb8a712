"""Train a head that drafts from an oracle's hidden states: ``python -m experiments.train_head --kind eagle3 ...``.

The head learns what the oracle's whole law says, running on over its own features as it does at decoding time. It
reads text that the oracle wrote: ``--own-text`` of ``oracles.factory.own_text``, or ``--shards`` of conversations.
Features are computed anew from the text. The head lies in OUT/head, in the format of ``speculators``, which
``oracles.load_head`` opens.
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor
from tqdm import tqdm

from exactspec.parser import Parser
from experiments.harness.arguments import positive, refusing
from experiments.harness.claims import claim_folder
from oracles.checkpoints.loading import load, load_tokenizer, load_trainable
from oracles.checkpoints.placement import Arithmetic
from oracles.checkpoints.tokenization import end_of_text_id
from oracles.factory.dialogues.draft import begin_of
from oracles.factory.dialogues.shards import Shards
from oracles.factory.training import workers
from oracles.factory.training.features import Reader, served_reader
from oracles.factory.training.head_distillation import LOSSES, Eagle3Distillation
from oracles.factory.training.head_export import describe_eagle3, new_eagle3, save_eagle3, usual_outputs
from oracles.factory.training.head_text import HeadText, dialogues, own_text
from oracles.factory.training.loop import Trainer, run
from oracles.factory.training.recipes import Recipe
from oracles.factory.training.training_arguments import add_run_arguments, options, precision, resume
from oracles.factory.training.windows import WindowPlan, Windows
from oracles.transformer.eager import Transformer

KINDS = ("eagle3",)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--kind", choices=KINDS, default="eagle3", help="of head (%(default)s)")
    add("--oracle", default="code", help="that it drafts for, as oracles.load takes it (%(default)s)")
    add("--verifier", help="what config.json calls the oracle, for servers (default: as --oracle)")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--own-text", type=Path, help="safetensors of text that the oracle wrote")
    text.add_argument("--shards", type=Path, help="folder of conversations that the oracle wrote")
    add("--layers", type=int, nargs="+", metavar="L", help="whose outputs it reads (EAGLE-3's usual three)")
    add("--unroll", type=positive, default=3, metavar="K", help="nodes of a chain that it learns (%(default)s)")
    add("--loss", choices=tuple(LOSSES), default="kl", help="from the oracle's whole law, or the text (%(default)s)")
    add("--discount", type=float, default=0.8, help="by which a further node counts less (%(default)s)")
    add("--vocab-size", type=positive, metavar="N", help="it writes the N most frequent ids of the text (all)")
    add("--lm-head", choices=("oracle", "own"), default="oracle", help="rows of its head, stored if own (%(default)s)")
    add("--intermediate-size", type=positive, help="width of its MLP (the oracle's)")
    add(
        "--served",
        choices=get_args(Arithmetic),
        help="features and laws of the pass that serves, on a CPU, in this arithmetic (of the pass that trains)",
    )
    add("--rate", type=float, default=4e-3, help="peak learning rate (%(default)s)")
    add("--window", type=positive, default=512, help="tokens of a window (%(default)s)")
    add("--step-tokens", type=positive, default=4096, help="tokens of a step (%(default)s)")
    add("--dev-windows", type=positive, default=16, help="held-out windows to measure on (%(default)s)")
    add("--measure-every", type=positive, default=100, help="steps between two measurements (%(default)s)")
    add_run_arguments(parser, Path("runs") / "head")
    parser.set_defaults(steps=600)
    return parser


def _texts(args: argparse.Namespace) -> tuple[HeadText, HeadText]:
    """Return what is learned on, and what is held out."""
    tokenizer = load_tokenizer(args.oracle)
    if args.own_text is not None:
        end = end_of_text_id(tokenizer)
        return own_text(args.own_text, end, held_out=False), own_text(args.own_text, end, held_out=True)
    shards, begin = Shards(args.shards), begin_of(tokenizer)
    return dialogues(shards, begin, "train"), dialogues(shards, begin, "dev")


def _check(args: argparse.Namespace) -> None:
    if args.unroll >= args.window:
        raise ValueError(f"--unroll is {args.unroll}; give 1..{args.window - 1}, less than a window")


def _target_ids(args: argparse.Namespace, oracle: Transformer, text: HeadText) -> Tensor | None:
    """Return the ids that the head writes; None: all."""
    if args.vocab_size is None or args.vocab_size >= oracle.vocab_size:
        return None
    if args.lm_head == "oracle" and not oracle.config.tie_embeddings:
        raise ValueError(
            "--vocab-size: the rows of this oracle's head are not its embeddings, so that whoever loads a head cannot "
            "borrow some of them: give --lm-head own"
        )
    return text.frequent(args.vocab_size, oracle.vocab_size)


def _reader(args: argparse.Namespace, layers: tuple[int, ...]) -> Reader | None:
    """Return the pass that features come of, if not the one that trains."""
    if args.served is None:
        return None
    return served_reader(load(args.oracle, device="cpu", arithmetic=args.served), layers)


def watch(task: Eagle3Distillation, text: HeadText, places: Tensor, every: int) -> Callable[[int], dict[str, float]]:
    """Return what measures the acceptance on held-out text, prints it, and adds it to the loss curve."""

    def see(num_done: int) -> dict[str, float]:
        if num_done % every:
            return {}
        found = {name: round(value, 4) for name, value in task.acceptance(text, places).items()}
        tqdm.write(f"step {num_done}: " + ", ".join(f"{name} {value:.3f}" for name, value in found.items()))
        return found

    return see


def train(args: argparse.Namespace) -> None:
    """Train to the end, or to ``--stop-after``, and write the head."""
    _check(args)
    chosen = options(args)
    oracle = load_trainable(args.oracle, dtype="float32", device=args.device)
    text, held_out = _texts(args)
    print(f"{len(text.ids):,} tokens, {int(text.counts.sum()):,} of them count; {len(held_out.ids):,} held out")
    target_ids = _target_ids(args, oracle, text)
    layers = usual_outputs(oracle.num_layers) if args.layers is None else tuple(args.layers)
    inner = oracle.config.intermediate_size if args.intermediate_size is None else args.intermediate_size
    count = None if target_ids is None else len(target_ids)
    values = describe_eagle3(oracle, args.verifier or args.oracle, layers, inner, count)
    network = new_eagle3(values, oracle, target_ids, args.lm_head == "own", args.seed)
    task = Eagle3Distillation(
        oracle, network, layers, target_ids, text, args.unroll, args.loss, args.discount, precision(args),
        _reader(args, layers),
    )  # fmt: skip
    windows = Windows(
        WindowPlan(args.step_tokens, args.window, args.window, long_share=0.0), torch.arange(len(text.ids)), args.seed
    )
    recipe = Recipe(oracle.config, args.steps, matrix_rate=args.rate, other_rate=args.rate)
    trainer = Trainer(recipe, windows, chosen, task)
    resume(trainer, args)
    see = watch(task, held_out, held_out.spread(args.dev_windows, args.window), args.measure_every)
    run(trainer, see)
    if trainer.may_export:
        see(0)
        save_eagle3(network, values, args.out / "head", target_ids)
        print(f"the head is in {args.out / 'head'}")


def main(argv: Sequence[str] | None = None) -> None:
    """Train a head, and say how often what it drafts would stand."""
    args = _parser().parse_args(argv)
    with ExitStack() as stack, refusing("train_head"):
        if workers.is_first():
            stack.enter_context(claim_folder(args.out))
        train(args)


if __name__ == "__main__":
    main()
