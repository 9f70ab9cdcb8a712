"""The 17 characters of arithmetic as tokens, and which problems a training step reads."""

from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from oracles.factory.arithmetic.problems import Problem, split

ALPHABET = "0123456789+-=.cb?"


def build_tokenizer() -> Tokenizer:
    """Return the tokenizer with one token for each character, in the order of ``ALPHABET``.

    There is no other character, and no token that ends a text: an answer has a fixed length.
    """
    tokenizer = Tokenizer(models.WordLevel({character: i for i, character in enumerate(ALPHABET)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def encode(texts: list[str]) -> Tensor:
    """Return the ids of texts of one length, ``[B, T]`` int64.

    Raises:
        ValueError: a character is not in ``ALPHABET``.
    """
    try:
        return torch.tensor([[ALPHABET.index(character) for character in text] for text in texts])
    except ValueError as error:
        raise ValueError(f"a text has a character that is none of {ALPHABET!r}") from error


@dataclass(frozen=True)
class Problems:
    """Problems drawn from those to train on (``oracles.factory.training.loop.Batches``).

    Args:
        num_problems: of a step.
        seed: of the draws.
    """

    num_problems: int
    seed: int

    @property
    def identity(self) -> str:
        """What a resumed run must share."""
        return repr(self)

    def batch(self, step: int, num_steps: int) -> Tensor:
        """Return the problems of a step with their answers, ``[num_problems, 28]`` int64; every step draws anew."""
        numbers = np.random.default_rng((self.seed, step)).choice(split()[0], self.num_problems)
        problems = [Problem.of_number(int(number)) for number in numbers]
        return encode([problem.prompt + problem.answer for problem in problems])
