"""The 17 characters of arithmetic as tokens."""

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

ALPHABET = "0123456789+-=.cb?"


def build_tokenizer() -> Tokenizer:
    """Return the tokenizer with one token a character, in the order of ``ALPHABET``.

    There is no other character, and no token that ends a text: an answer has a fixed length.
    """
    tokenizer = Tokenizer(models.WordLevel({character: i for i, character in enumerate(ALPHABET)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def encode(texts: list[str]) -> Tensor:
    """Return the ids of texts of one length, ``[B, T]`` int64.

    Raises:
        ValueError: a character is none of ``ALPHABET``.
    """
    try:
        return torch.tensor([[ALPHABET.index(character) for character in text] for text in texts])
    except ValueError as error:
        raise ValueError(f"a text has a character that is none of {ALPHABET!r}") from error
