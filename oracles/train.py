"""Train an embedded checkpoint: ``python -m oracles.train code --out runs/code --export oracles/embedded/code``.

Resume with the same command and ``--resume``; distil with ``--teacher DIRECTORY``.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from oracles.corpus import read_split
from oracles.training.bits import bits_per_byte, load_exported
from oracles.training.export import export_llama
from oracles.training.loop import LanguageModel, Options, Trainer, run
from oracles.training.recipes import RECIPES
from oracles.training.windows import token_stream

TOKENIZER = Path(__file__).parent / "embedded" / "code" / "tokenizer.json"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("recipe", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, required=True, help="folder of the resumable state and the loss curve")
    parser.add_argument("--export", type=Path, help="folder of the finished checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the state in --out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="length of the run, if not the recipe's")
    parser.add_argument("--stop-after", type=int, help="stop, saved, when this many steps are done")
    parser.add_argument("--save-every", type=int, default=50, help="steps between saved states")
    parser.add_argument("--repeat-share", type=float, help="copies in a piece of 512 tokens, if not the recipe's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="CPU threads, if not torch's own number")
    parser.add_argument("--teacher", type=Path, help="directory of an exported checkpoint to distil")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    return parser


def _build_trainer(args: argparse.Namespace, tokenizer: Tokenizer) -> Trainer:
    recipe = RECIPES[args.recipe]
    recipe = recipe if args.steps is None else replace(recipe, num_steps=args.steps)
    stream = token_stream((source.text for source in read_split("train")), tokenizer)
    teacher = None if args.teacher is None else load_exported(args.teacher, recipe.config.vocab_size).to(args.device)
    options = Options(args.out, args.seed, args.device, args.save_every, args.stop_after, args.repeat_share)
    args.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(recipe, stream, options, LanguageModel(recipe, options, teacher))
    if args.resume:
        trainer.resume()
    return trainer


def main() -> None:
    """Train, and once the recipe has ended export the checkpoint and print its held-out bits per byte."""
    args = _parser().parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    trainer = _build_trainer(args, tokenizer)
    run(trainer)
    if args.export is None or trainer.num_done < trainer.recipe.num_steps:
        return
    export_llama(trainer.model.state_dict(), trainer.recipe.config, tokenizer, args.export)
    texts = [source.text for source in read_split("heldout")]
    model = load_exported(args.export, tokenizer.get_vocab_size()).to(args.device)
    print(f"held-out bits per byte: {bits_per_byte(model, tokenizer, texts):.4f}")


if __name__ == "__main__":
    main()
