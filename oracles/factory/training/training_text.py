"""The text that a model learns on: the corpus, and for a pupil also what its teacher wrote."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from oracles.checkpoints.loading import num_ids
from oracles.factory.corpus import read_split
from oracles.factory.training.windows import MixedBatches, WindowPlan, Windows, token_stream


def learning_text(plan: WindowPlan, tokenizer: Tokenizer, own_text: Path | None, seed: int) -> Windows | MixedBatches:
    """Return the windows of a run, and print how many tokens there are to read.

    Args:
        plan: their shape.
        tokenizer: of the model.
        own_text: file that ``oracles.factory.own_text`` wrote: half of every step is of it; None: the corpus alone.
        seed: of the order.

    Raises:
        ValueError: see ``read_own_text`` and ``check_text_ids``.
    """
    corpus = token_stream((source.text for source in read_split("train")), tokenizer)
    print(f"{len(corpus):,} tokens of the corpus", flush=True)
    if own_text is None:
        return Windows(plan, corpus, seed)
    own = read_own_text(own_text)
    check_text_ids(own, num_ids(tokenizer))
    print(f"{len(own):,} tokens of the oracle's own", flush=True)
    half = plan.halve()
    return MixedBatches(Windows(half, corpus, seed), Windows(half, own, seed))


def read_own_text(path: Path) -> Tensor:
    """Return the ids ``[S]`` that ``oracles.factory.own_text`` wrote to a file.

    Raises:
        ValueError: it holds none.
    """
    try:
        tokens = load_file(path).get("tokens")
    except SafetensorError as error:
        raise ValueError(f"{path} is no readable safetensors file: {error}") from error
    if tokens is None or tokens.dim() != 1 or tokens.is_floating_point():
        raise ValueError(f"{path} holds no text of an oracle: write one with python -m oracles.factory.own_text")
    return tokens


def check_text_ids(ids: Tensor, vocab_size: int) -> None:
    """Raise ValueError if a text ``[S]`` holds an id that a model does not have."""
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise ValueError(
            f"the text holds ids from {int(ids.min())} to {int(ids.max())}, and the model has 0..{vocab_size - 1}: "
            "give text of this very model"
        )


def check_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise ValueError unless a tokenizer writes the ``vocab_size`` ids of a model."""
    if (found := num_ids(tokenizer)) != vocab_size:
        raise ValueError(f"the tokenizer writes {found} ids, and the model has {vocab_size}: give one of as many")
