"""Let an oracle write text for its drafts: ``python -m oracles.factory.own_text --out runs/own-text.safetensors``.

Each text continues the first tokens of a window of the training corpus: half of the texts are drawn at temperature 1, a
quarter at temperature 0.8 with top-p 0.95, a quarter are greedy. Every text has its own seed.
"""

import argparse
import os
from pathlib import Path

import torch
from safetensors.torch import save

from exactspec.ending import as_program
from exactspec.parser import Parser, natural, positive, refusing
from oracles.checkpoints.loading import load, load_tokenizer
from oracles.checkpoints.tokenization import end_of_text_id
from oracles.factory.corpus import modules_only, read_split
from oracles.factory.evaluation.continuations import GREEDY, NUCLEUS, OWN_TEXT, write
from oracles.factory.training.training_arguments import add_threads, take_threads
from oracles.factory.training.windows import token_stream, windows_of
from specdec.system import write_whole

# The sampling of four texts in turn.
WAYS = (OWN_TEXT, NUCLEUS, OWN_TEXT, GREEDY)


def main() -> None:
    """Write ``tokens`` [S] int32: the texts, each between two end-of-text tokens."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--oracle", default="code", help="an embedded checkpoint or a directory (default %(default)s)")
    add("--out", type=Path, required=True, help="file to write")
    add("--texts", type=positive, default=8192, help="number of texts (default %(default)s)")
    add("--length", type=positive, default=512, help="tokens of a text, its beginning included (default %(default)s)")
    add("--beginning", type=positive, default=64, help="tokens taken from the corpus (default %(default)s)")
    add("--batch-size", type=positive, default=128, help="texts written side by side (default %(default)s)")
    add("--modules-only", action="store_true", help="begin from the standard library, which needs no download")
    add(
        "--seed",
        type=natural,
        default=1,
        help="seed of the choice of beginnings and of the draws (default %(default)s)",
    )
    add_threads(parser)
    args = parser.parse_args()
    with refusing("oracles.factory.own_text"):
        _check(args)
        take_threads(args)
        tokenizer, oracle = load_tokenizer(args.oracle), load(args.oracle)
        sources = read_split("train", manifest=modules_only() if args.modules_only else None)
        stream = token_stream((source.text for source in sources), tokenizer)
        rows = range(args.texts)
        prompts = [tuple(ids) for ids in windows_of(stream, args.beginning, rows, args.seed)[:, :-1].tolist()]
        ways, new = [WAYS[row % len(WAYS)] for row in rows], args.length - args.beginning
        end = end_of_text_id(tokenizer)
        ids = [end]
        for one in write(oracle, prompts, ways, new, args.batch_size, args.seed):
            text = [*one.prompt, *one.new]
            ids += text if text[-1] == end else [*text, end]
        write_whole(args.out, save({"tokens": torch.tensor(ids, dtype=torch.int32)}))
    print(f"{len(ids):,} tokens in {args.out}")


def _check(args: argparse.Namespace) -> None:
    """Raise ValueError if a text leaves the oracle no room for a token, or the file cannot be written."""
    if args.length <= args.beginning:
        raise ValueError(f"--length is {args.length}; give more than --beginning, which is {args.beginning}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if args.out.is_dir() or not os.access(args.out.parent, os.W_OK):
        raise ValueError(f"--out: {args.out} is a folder, or lies in one that cannot be written; give a file")


if __name__ == "__main__":
    as_program(main)
