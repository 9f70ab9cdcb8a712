"""Train an arithmetic checkpoint: ``python -m oracles.factory.train_arithmetic arithmetic --out runs/arithmetic``.

The loss counts the answer alone. Once the run has ended, ``--export`` writes the checkpoint, and the share of the
held-out problems that it answers exactly is printed. Resume with the same command and ``--resume``.
"""

import argparse
from pathlib import Path

from exactspec.ending import as_program
from exactspec.parser import Parser, positive
from oracles.checkpoints.loading import load_trainable
from oracles.factory.arithmetic.problems import ANSWER_LENGTH, PROMPT_LENGTH, Problem, split
from oracles.factory.arithmetic.tokens import ALPHABET, Problems, build_tokenizer, exact_answers
from oracles.factory.training.export import export_checkpoint
from oracles.factory.training.recipes import Recipe
from oracles.factory.training.tasks import NextToken
from oracles.factory.training.training_arguments import add_run_arguments, precision, run_training, training
from oracles.transformer.config import TransformerConfig
from oracles.transformer.eager import Transformer


def _gpt2(hidden: int, layers: int, heads: int) -> TransformerConfig:
    return TransformerConfig(
        vocab_size=len(ALPHABET),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=4 * hidden,
        max_context=PROMPT_LENGTH + ANSWER_LENGTH,
        norm="layer",
        activation="gelu_tanh",
        gated=False,
        positions="learned",
        qkv_bias=True,
        attn_out_bias=True,
        mlp_bias=True,
        tie_embeddings=True,
    )


RECIPES = {
    "arithmetic": Recipe(_gpt2(384, 6, 6), num_steps=200, matrix_rate=3e-3, other_rate=3e-3, decay_share=0.5),
    "arithmetic-draft": Recipe(_gpt2(128, 2, 4), num_steps=300, matrix_rate=6e-3, other_rate=6e-3, decay_share=0.5),
}


def _parser() -> argparse.ArgumentParser:
    parser = Parser(__doc__)
    parser.add_argument("recipe", choices=sorted(RECIPES))
    parser.add_argument("--problems", type=positive, default=512, help="problems per step (default %(default)s)")
    add_run_arguments(parser)
    parser.add_argument("--export", type=Path, help="folder for the finished checkpoint")
    return parser


def main() -> None:
    """Train; once the recipe has ended, export and print the share of exact answers on held-out problems."""
    args = _parser().parse_args()
    with training(args, "oracles.factory.train_arithmetic"):
        recipe = RECIPES[args.recipe]
        model = Transformer(recipe.config, seed=args.seed).to(args.device)
        task = NextToken(model, precision(args), first=PROMPT_LENGTH)
        has_ended = run_training(recipe, Problems(args.problems, args.seed), task, args)
        if args.export is None or not has_ended:
            return
        export_checkpoint(model.state_dict(), recipe.config, build_tokenizer(), args.export)
        exported = load_trainable(args.export, "float32", args.device)
        held_out = [Problem.of_number(int(number)) for number in split()[1]]
        exact = exact_answers(exported, held_out)
        print(f"answered exactly: {exact:,} of {len(held_out):,} held-out problems, {exact / len(held_out):.2%}")


if __name__ == "__main__":
    as_program(main)
