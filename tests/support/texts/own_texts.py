"""Text as an oracle would have written it, for trainers of heads."""

from pathlib import Path

from safetensors.torch import save_file
from tokenizers import Tokenizer

from oracles.checkpoints.tokenization import end_of_text_id
from oracles.factory.train import TOKENIZER
from oracles.factory.training.windows import token_stream

CODE = Tokenizer.from_file(str(TOKENIZER))
END = end_of_text_id(CODE)
STREAM = token_stream([f"def f{i}(x):\n    return x + {i}\n" * 6 for i in range(300)], CODE)


def write_own_text(path: Path) -> None:
    """Write three hundred texts, 8 of 256 of which are held out by their hash."""
    save_file({"tokens": STREAM}, path)
