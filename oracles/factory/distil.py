"""Distil draft models from an oracle: ``python -m oracles.factory.distil code-draft code-draft-tiny --own-text FILE``.

All drafts learn from the same passes of the oracle: half over the corpus, half over text that the oracle wrote
(``python -m oracles.factory.own_text``), because that is the text that a draft is used on. A name may carry the
divergence that the draft learns by: ``code-draft:total-variation``. When the run has ended, ``--export`` writes a
directory for each draft.
"""

import argparse
from pathlib import Path

from exactspec.ending import as_program
from exactspec.parser import Parser
from oracles.checkpoints.embedded_folders import EMBEDDED
from oracles.checkpoints.loading import load_tokenizer, load_trainable
from oracles.factory.training.export import export_checkpoint
from oracles.factory.training.recipes import RECIPES
from oracles.factory.training.tasks import Distillation, Pupil
from oracles.factory.training.training_arguments import add_run_arguments, precision, run_training, training
from oracles.factory.training.training_text import check_tokenizer, learning_text
from oracles.transformer.eager import Transformer


def _parser() -> argparse.ArgumentParser:
    parser = Parser(__doc__)
    parser.add_argument("pupils", nargs="+", metavar="RECIPE[:DIVERGENCE]", help=f"one of {', '.join(sorted(RECIPES))}")
    add_run_arguments(parser)
    parser.add_argument("--export", type=Path, help="folder for a directory of every pupil")
    add = parser.add_argument
    add("--teacher", type=Path, default=EMBEDDED / "code", help="directory of the oracle (default: code)")
    add("--own-text", type=Path, required=True, help="safetensors of text that the oracle wrote")
    return parser


def _pupils(names: list[str], seed: int, device: str) -> dict[str, Pupil]:
    """Return a fresh pupil by each name.

    Raises:
        SystemExit: a name has no recipe, or is given twice.
    """
    pupils = {}
    for name in names:
        recipe, _, divergence = name.partition(":")
        if recipe not in RECIPES or name in pupils:
            raise SystemExit(f"pupil {name!r}: give each once, and one of {', '.join(sorted(RECIPES))}")
        model = Transformer(RECIPES[recipe].recipe.config, seed=seed).to(device)
        pupils[name] = Pupil(model, divergence or "forward-kl")
    return pupils


def main() -> None:
    """Train all pupils; once the recipe of the first has ended, export them."""
    args = _parser().parse_args()
    with training(args, "oracles.factory.distil"):
        pupils = _pupils(args.pupils, args.seed, args.device)
        tokenizer = load_tokenizer(args.teacher)
        teacher = load_trainable(args.teacher, "float32", args.device)
        first = RECIPES[args.pupils[0].partition(":")[0]]
        for size in (teacher.vocab_size, first.recipe.config.vocab_size):
            check_tokenizer(tokenizer, size)
        task = Distillation(pupils, teacher, precision(args))
        text = learning_text(first.windows, tokenizer, args.own_text, args.seed)
        has_ended = run_training(first.recipe, text, task, args)
        if args.export is not None and has_ended:
            for name, pupil in pupils.items():
                export_checkpoint(pupil.model.state_dict(), pupil.model.config, tokenizer, args.export / name)


if __name__ == "__main__":
    as_program(main)
