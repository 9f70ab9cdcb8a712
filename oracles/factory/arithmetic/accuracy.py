"""How many problems a model answers exactly."""

from collections.abc import Sequence

import torch

from oracles.factory.arithmetic.problems import PROMPT_LENGTH, Problem
from oracles.factory.arithmetic.tokens import encode
from oracles.transformer.eager import Transformer

# Problems in a pass.
BATCH_SIZE = 512


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
