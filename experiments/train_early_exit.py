"""Train exit heads for ``drafts.EarlyExit``: adapters behind the first layers of an oracle whose weights stay.

``python -m experiments.train_early_exit`` trains one head behind each of 1, 2 and 3 layers of the embedded checkpoint
``code``, on its corpus's training modules, from one pass of the oracle for all of them, and writes each to
``OUT/head-K``. Then it prints how often each head agrees with the oracle on the corpus's held-out modules. An
interrupted training goes on from OUT with the same command.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from tokenizers import Tokenizer

from experiments.arguments import refusing
from experiments.claims import claimed
from oracles.corpus import read_split
from oracles.heads import HeadShape, save_head
from oracles.loading import EMBEDDED
from oracles.training.bits import load_exported
from oracles.training.exits import Agreement, ExitDistillation
from oracles.training.loop import STATE_FILE, Options, Trainer, run
from oracles.training.recipes import Recipe
from oracles.training.windows import WindowPlan, token_stream
from oracles.transformer import Transformer

HELDOUT_WINDOW = 512


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--oracle", type=Path, default=EMBEDDED / "code", help="checkpoint directory, Llama's tensor names (code)")
    add("--num-layers", type=int, nargs="+", default=[1, 2, 3], metavar="K", help="layers below each head (1 2 3)")
    add("--inner-size", type=int, default=768, help="width of an adapter (%(default)s)")
    add("--steps", type=int, default=600, help="length of the run (%(default)s)")
    add("--tokens-per-step", type=int, default=4096, help="a multiple of --window (%(default)s)")
    add("--window", type=int, default=512, help="tokens of a window (%(default)s)")
    add("--rate", type=float, default=4e-3, help="peak learning rate (%(default)s)")
    add("--seed", type=int, default=0, help="of the initial weights and the data order (%(default)s)")
    add("--stop-after", type=int, help="stop, saved, when this many steps are done")
    add("--save-every", type=int, default=50, help="steps between saved states (%(default)s)")
    add("--device", default="cpu", help="where to train (%(default)s)")
    add("--threads", type=int, help="CPU threads (torch's own choice)")
    add("--corpus", type=Path, help="folder of the standard library to read (this interpreter's)")
    add(
        "--out", type=Path, default=Path("runs") / "early-exit", help="resumable state, loss curve, heads (%(default)s)"
    )
    return parser


def _recipe(args: argparse.Namespace, oracle: Transformer) -> Recipe:
    # Windows of one length: what lies far back is the frozen layers' business. Copies as in the oracle's last steps.
    windows = WindowPlan(args.tokens_per_step, args.window, args.window, long_share=0.0, repeat_share=0.5)
    return Recipe(oracle.config, args.steps, windows, matrix_rate=args.rate, other_rate=args.rate)


def _check(args: argparse.Namespace, oracle: Transformer) -> None:
    last = oracle.config.num_layers - 1
    wrong = [k for k in args.num_layers if not 1 <= k <= last]
    if wrong:
        raise SystemExit(f"--num-layers {wrong}: the oracle has {last + 1} layers, so give 1..{last}")


def train(args: argparse.Namespace) -> ExitDistillation | None:
    """Train to the end, or to ``--stop-after`` (then None), from the state in ``--out`` where there is one."""
    tokenizer = Tokenizer.from_file(str(args.oracle / "tokenizer.json"))
    oracle = load_exported(args.oracle, tokenizer.get_vocab_size()).to(args.device)
    _check(args, oracle)
    args.out.mkdir(parents=True, exist_ok=True)
    stream = token_stream((source.text for source in read_split("train", args.corpus)), tokenizer)
    options = Options(args.out, args.seed, args.device, args.save_every, args.stop_after)
    task = ExitDistillation(oracle, args.num_layers, args.inner_size, args.seed)
    trainer = Trainer(_recipe(args, oracle), stream, options, task)
    if (args.out / STATE_FILE).is_file():
        trainer.resume()
    run(trainer)
    return task if trainer.num_done >= args.steps else None


def table(agreement: Mapping[str, Agreement]) -> str:
    """Return what the heads are worth, one row each."""
    lines = [
        "| layers below | same likeliest id | overlap of the laws | KL in nats | tokens |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, a in sorted(agreement.items()):
        shares = (
            f"{a.same_best / a.num_tokens:.4f} | {a.overlap / a.num_tokens:.4f} | {a.divergence / a.num_tokens:.3f}"
        )
        lines.append(f"| {name} | {shares} | {a.num_tokens:,} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, write the heads, and print their agreement with the oracle on held-out text."""
    args = _parser().parse_args(argv)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    with ExitStack() as stack:
        with refusing("train_early_exit"):
            stack.enter_context(claimed(args.out))
        _run(args)


def _run(args: argparse.Namespace) -> None:
    task = train(args)
    if task is None:
        return
    for k in args.num_layers:
        shape = HeadShape.of(task.oracle.config, k, args.inner_size)
        save_head(task.adapters[str(k)], shape, args.out / f"head-{k}")
    tokenizer = Tokenizer.from_file(str(args.oracle / "tokenizer.json"))
    texts = [source.text for source in read_split("heldout", args.corpus)]
    print(table(task.agreement(tokenizer, texts, HELDOUT_WINDOW)))


if __name__ == "__main__":
    main()
