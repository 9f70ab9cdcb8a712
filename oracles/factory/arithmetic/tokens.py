"""The 17 characters of arithmetic as tokens; which problems a training step reads, and how many a model answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from oracles.factory.arithmetic.problems import PROMPT_LENGTH, Problem, split
from oracles.transformer.eager import Transformer

ALPHABET = "0123456789+-=.cb?"
# Problems that a model answers in a pass.
BATCH_SIZE = 512


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


@torch.no_grad()
def exact_answers(model: Transformer, problems: Sequence[Problem]) -> int:
    """Return how many problems greedy decoding answers exactly, all 19 characters of the working and the result.

    Greedy decoding writes the answer if and only if each of its characters is the likeliest after those before it, so
    one pass over prompt and answer suffices.

    Args:
        model: in training form, on any device.
        problems: to answer.
    """
    count = 0
    for first in range(0, len(problems), BATCH_SIZE):
        rows = encode([p.prompt + p.answer for p in problems[first : first + BATCH_SIZE]]).to(model.device)
        likeliest = model(rows[:, :-1]).argmax(-1)[:, PROMPT_LENGTH - 1 :]
        count += int((likeliest == rows[:, PROMPT_LENGTH:]).all(-1).sum())
    return count
