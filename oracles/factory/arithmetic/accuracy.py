"""How many problems a model answers exactly."""

from collections.abc import Sequence

import torch

from oracles.factory.arithmetic.problems import PROMPT_LENGTH, Problem
from oracles.factory.arithmetic.tokens import encode
from oracles.transformer.eager import Transformer


@torch.no_grad()
def exact_answers(model: Transformer, problems: Sequence[Problem], batch_size: int = 512) -> int:
    """Return how many problems greedy decoding answers exactly, all 19 characters of the working and the result.

    Greedy decoding writes the answer if and only if every character of it is the likeliest after those before it, so
    one pass over prompt and answer tells.

    Args:
        model: in training form, on any device.
        problems: to answer.
        batch_size: problems in a pass.
    """
    count = 0
    for first in range(0, len(problems), batch_size):
        rows = encode([p.prompt + p.answer for p in problems[first : first + batch_size]]).to(model.device)
        likeliest = model(rows[:, :-1]).argmax(-1)[:, PROMPT_LENGTH - 1 :]
        count += int((likeliest == rows[:, PROMPT_LENGTH:]).all(-1).sum())
    return count
