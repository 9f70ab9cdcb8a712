"""Print what the embedded checkpoints are worth on held-out text: ``python -m oracles.evaluate``."""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer

from oracles.corpus import read_split
from oracles.loading import EMBEDDED, embedded_names
from oracles.training.bits import bits_per_byte, load_exported


def main() -> None:
    """Print one row per checkpoint: parameters, size on disk, held-out bits per byte."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default %(default)s)")
    torch.set_num_threads(parser.parse_args().threads)
    texts = [source.text for source in read_split("heldout")]
    print("| checkpoint | parameters | MB on disk | held-out bits per byte |\n| --- | ---: | ---: | ---: |")
    for name in embedded_names():
        folder = EMBEDDED / name
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        model = load_exported(folder, tokenizer.get_vocab_size())
        count = sum(parameter.numel() for parameter in model.parameters())
        size = sum(shard.stat().st_size for shard in Path(folder).glob("*.safetensors"))
        print(f"| `{name}` | {count:,} | {size / 1e6:.1f} | {bits_per_byte(model, tokenizer, texts):.3f} |", flush=True)


if __name__ == "__main__":
    main()
