"""Ids for calibration: from the text that a checkpoint was trained on, never from held-out text."""

from tokenizers import Tokenizer
from torch import Tensor

from oracles.checkpoints.tokenization import END_OF_TEXT, VOCAB_SIZE
from oracles.factory.arithmetic.tokens import ALPHABET, Problems
from oracles.factory.corpus import modules_only, read_split
from oracles.factory.training.windows import token_stream, windows_of
from oracles.transformer.eager import Transformer

NUM_TOKENS, LENGTH = 16384, 256


def calibration_ids(model: Transformer, num_tokens: int = NUM_TOKENS, seed: int = 0) -> Tensor:
    """Return ids ``[B, T]`` int64 to calibrate an embedded checkpoint, or one with the same tokenizer.

    For source code: windows of 256 ids, or of the model's context if that is shorter, of the standard library's part of
    the split *train*. That is 372 files, 7.0 MB of 197.8, available without a download wherever Python has the version
    that the manifest names. Every file is checked by its hash; none of *dev* or *test* is opened.

    For arithmetic: whole training problems of 28 ids with their answers (``problems.split``).

    Args:
        model: with its tokenizer, as ``load_trainable`` returns it.
        num_tokens: the fewest ids to return, in whole rows.
        seed: of the choice.

    Raises:
        ValueError: ``num_tokens`` is below 1; the tokenizer is neither's, and the caller must give ids instead; a file
            is absent or differs, for example under another version of Python; the text is too short.

    Cost: for source code, reading and tokenizing all of it, a few seconds.
    """
    if num_tokens < 1:
        raise ValueError(f"num_tokens is {num_tokens}; give at least 1")
    vocabulary = {} if model.tokenizer is None else model.tokenizer.get_vocab()
    if set(vocabulary) == set(ALPHABET):
        row = Problems(1, seed).batch(0, 1).shape[1]
        return Problems(-(-num_tokens // row), seed).batch(0, 1)
    if model.tokenizer is None or (len(vocabulary), vocabulary.get(END_OF_TEXT)) != (VOCAB_SIZE, 0):
        raise ValueError(
            "the text that this checkpoint learned from is not known: it has neither the tokenizer of 'code' nor that "
            "of 'arithmetic'; give ids [B, T] of such text yourself"
        )
    length = min(LENGTH, model.max_context)
    return _code_ids(model.tokenizer, -(-num_tokens // length), length, seed)


def _code_ids(tokenizer: Tokenizer, num_rows: int, length: int, seed: int) -> Tensor:
    """Return windows ``[num_rows, length]`` int64, chosen as in a training run: none overlap before all were read."""
    manifest = modules_only()
    try:
        sources = read_split("train", manifest=manifest)
    except ValueError as error:
        raise ValueError(
            f"no text of the split train is at hand: {error}. Run Python {manifest.python_version}, or give ids [B, T] "
            "of your own"
        ) from error
    stream = token_stream((source.text for source in sources), tokenizer)
    return windows_of(stream, length, range(num_rows), seed)[:, :-1]
