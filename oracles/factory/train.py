"""Train an embedded model: ``python -m oracles.factory.train code --out runs/code --export oracles/embedded/code``.

To resume, give the same command and ``--resume``. To prolong a finished run, give ``--prolong`` and more ``--steps``:
it goes on from the last step at peak rates. ``--init DIRECTORY`` starts from exported weights with fresh optimisers.
"""

import argparse
from pathlib import Path

from exactspec.ending import as_program
from exactspec.parser import Parser
from oracles.checkpoints.loading import load_tokenizer, load_trainable
from oracles.factory.corpus import read_split
from oracles.factory.training.export import export_checkpoint, take_weights
from oracles.factory.training.held_out import bits_per_byte
from oracles.factory.training.recipes import RECIPES, Recipe
from oracles.factory.training.tasks import NextToken
from oracles.factory.training.training_arguments import add_run_arguments, precision, run_training, training
from oracles.factory.training.training_text import check_tokenizer, learning_text
from oracles.transformer.eager import Transformer

TOKENIZER = Path(__file__).parents[1] / "embedded" / "code" / "tokenizer.json"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(__doc__)
    parser.add_argument("recipe", choices=sorted(RECIPES))
    add_run_arguments(parser)
    parser.add_argument("--export", type=Path, help="folder for the finished checkpoint")
    add = parser.add_argument
    add("--init", type=Path, help="directory of an exported checkpoint of the same shape to start from")
    add("--tokenizer", type=Path, default=TOKENIZER, help="tokenizer.json of the texts (that of code)")
    return parser


def _model(args: argparse.Namespace, recipe: Recipe) -> Transformer:
    """Return the model that is trained, from random weights or from ``--init``."""
    model = Transformer(recipe.config, seed=args.seed)
    if args.init is not None:
        take_weights(model, args.init)
    return model.to(args.device)


def main() -> None:
    """Train; once the recipe has ended, export the checkpoint and print its bits per byte on *dev*."""
    args = _parser().parse_args()
    with training(args, "oracles.factory.train"):
        tokenizer = load_tokenizer(args.tokenizer)
        plan, recipe = RECIPES[args.recipe].windows, RECIPES[args.recipe].recipe
        check_tokenizer(tokenizer, recipe.config.vocab_size)
        model = _model(args, recipe)
        text = learning_text(plan, tokenizer, None, args.seed)
        has_ended = run_training(recipe, text, NextToken(model, precision(args)), args)
        if args.export is None or not has_ended:
            return
        export_checkpoint(model.state_dict(), recipe.config, tokenizer, args.export)
        exported = load_trainable(args.export, "float32", args.device)
        texts = [source.text for source in read_split("dev")]
        print(f"bits per byte on dev: {bits_per_byte(exported, tokenizer, texts):.4f}")


if __name__ == "__main__":
    as_program(main)
