"""Train exit heads for ``drafts.EarlyExit``: adapters after the first layers of an oracle whose weights stay.

``python -m experiments.train_early_exit`` trains one head after each of 1, 2 and 3 layers of the embedded checkpoint
``code``, from one pass of the oracle for all of them, over its corpus and, with ``--own-text``, over what it wrote. It
writes each to ``OUT/head-K`` and prints how often each head agrees with the oracle on the corpus's *dev* split.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tokenizers import Tokenizer

from exactspec.parser import Parser
from experiments.harness.arguments import refusing
from experiments.harness.claims import claim_folder
from oracles.checkpoints.embedded_folders import EMBEDDED
from oracles.factory.corpus import read_split
from oracles.factory.evaluation.agreement import Agreement
from oracles.factory.training import workers
from oracles.factory.training.exits import ExitDistillation
from oracles.factory.training.held_out import load_exported
from oracles.factory.training.loop import Trainer, run
from oracles.factory.training.recipes import Recipe
from oracles.factory.training.training_arguments import add_run_arguments, options, precision, resume
from oracles.factory.training.training_text import learning_text
from oracles.factory.training.windows import WindowPlan
from oracles.heads import HeadShape, save_head
from oracles.transformer.eager import Transformer
from specdec.stats import Table
from specdec.stats.report import show

DEV_WINDOW = 512
# Windows of one length: what lies far back is the frozen layers' business.
WINDOWS = WindowPlan(8192, 512, 512, long_share=0.0)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--oracle", type=Path, default=EMBEDDED / "code", help="checkpoint directory, Llama's tensor names (code)")
    add("--num-layers", type=int, nargs="+", default=[1, 2, 3], metavar="K", help="layers below each head (1 2 3)")
    add("--inner-size", type=int, default=768, help="width of an adapter (%(default)s)")
    add("--rate", type=float, default=4e-3, help="peak learning rate (%(default)s)")
    add("--own-text", type=Path, help="safetensors of text that the oracle wrote, for a half of what is read")
    add_run_arguments(parser, Path("runs") / "early-exit")
    parser.set_defaults(steps=600)
    return parser


def _check(args: argparse.Namespace, oracle: Transformer) -> None:
    last = oracle.config.num_layers - 1
    wrong = [k for k in args.num_layers if not 1 <= k <= last]
    if wrong:
        raise SystemExit(f"--num-layers {wrong}: the oracle has {last + 1} layers, so give 1..{last}")


def train(args: argparse.Namespace) -> ExitDistillation | None:
    """Train to the end, or to ``--stop-after`` (then None)."""
    tokenizer = Tokenizer.from_file(str(args.oracle / "tokenizer.json"))
    oracle = load_exported(args.oracle, tokenizer.get_vocab_size()).to(args.device)
    _check(args, oracle)
    chosen = options(args)
    task = ExitDistillation(oracle, args.num_layers, args.inner_size, args.seed, precision(args))
    recipe = Recipe(oracle.config, args.steps, matrix_rate=args.rate, other_rate=args.rate)
    trainer = Trainer(recipe, learning_text(WINDOWS, tokenizer, args.own_text, args.seed), chosen, task)
    resume(trainer, args)
    run(trainer)
    return task if trainer.may_export else None


def worth(agreement: Mapping[str, Agreement]) -> Table:
    """Return what the heads are worth, one row each."""
    rows = [
        {
            "layers below": name,
            "same likeliest id": f"{a.same_best / a.num_tokens:.4f}",
            "overlap of the laws": f"{a.overlap / a.num_tokens:.4f}",
            "KL in nats": f"{a.divergence / a.num_tokens:.3f}",
            "tokens": f"{a.num_tokens:,}",
        }
        for name, a in sorted(agreement.items())
    ]
    return Table("Exit heads on *dev*", rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, write the heads, and print their agreement with the oracle on *dev*."""
    args = _parser().parse_args(argv)
    with ExitStack() as stack:
        if workers.is_first():
            with refusing("train_early_exit"):
                stack.enter_context(claim_folder(args.out))
        _run(args)


def _run(args: argparse.Namespace) -> None:
    task = train(args)
    if task is None:
        return
    for k in args.num_layers:
        shape = HeadShape.of(task.oracle.config, k, args.inner_size)
        save_head(task.adapters[str(k)], shape, args.out / f"head-{k}")
    tokenizer = Tokenizer.from_file(str(args.oracle / "tokenizer.json"))
    texts = [source.text for source in read_split("dev")]
    show([worth(task.agreement(tokenizer, texts, DEV_WINDOW))])


if __name__ == "__main__":
    main()
