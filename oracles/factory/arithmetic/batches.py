"""Which problems a training step reads (``oracles.factory.training.loop.Batches``)."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from oracles.factory.arithmetic.problems import Problem, split
from oracles.factory.arithmetic.tokens import encode


@dataclass(frozen=True)
class Problems:
    """Problems drawn from those to train on.

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
