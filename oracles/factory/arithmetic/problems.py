"""The problems, their split, and their answers as text.

A prompt has 9 characters, ``?123+456=``; its answer has 19, none of them padding: the working, three columns of five
from the units up, and the result in four. A column is the upper digit, the lower digit, what comes in from the column
before, the digit below the line, and what goes out: ``.`` nothing, ``c`` a carried one, ``b`` a borrowed one. A
difference is worked with the larger operand above, and its result begins with its sign: ``-`` or ``0``.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

OPERANDS = 1000
OPERATORS = "+-"
NUM_HELD_OUT = 3277
SPLIT_SEED = 28
PROMPT_LENGTH, ANSWER_LENGTH = 9, 19


@dataclass(frozen=True)
class Problem:
    """``left`` plus or minus ``right``, both from 0 to 999."""

    left: int
    operator: str
    right: int

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS or not all(0 <= x < OPERANDS for x in (self.left, self.right)):
            raise ValueError(f"{self} is no problem: give operands 0..{OPERANDS - 1} and one of {OPERATORS!r}")

    @staticmethod
    def of_number(number: int) -> "Problem":
        """Return the problem with this number, 0 to 1,999,999."""
        rest, right = divmod(number, OPERANDS)
        operator, left = divmod(rest, OPERANDS)
        return Problem(left, OPERATORS[operator], right)

    @property
    def number(self) -> int:
        """Return the problem's place among all of them."""
        return (OPERATORS.index(self.operator) * OPERANDS + self.left) * OPERANDS + self.right

    @property
    def mirror(self) -> "Problem":
        """Return the problem with its operands exchanged."""
        return Problem(self.right, self.operator, self.left)

    @property
    def prompt(self) -> str:
        """Return what the model reads."""
        return f"?{self.left:03}{self.operator}{self.right:03}="

    @property
    def answer(self) -> str:
        """Return what the model should write: the working and the result."""
        return "".join(self._columns()) + self._result()

    def _columns(self) -> list[str]:
        is_sum = self.operator == "+"
        upper, lower = (self.left, self.right) if is_sum else sorted((self.left, self.right), reverse=True)
        columns, entering, mark = [], 0, "c" if is_sum else "b"
        for place in (1, 10, 100):
            above, below = upper // place % 10, lower // place % 10
            value = above + below + entering if is_sum else above - below - entering
            leaving = int(not 0 <= value < 10)
            marks = [mark if one else "." for one in (entering, leaving)]
            columns.append(f"{above}{below}{marks[0]}{value % 10}{marks[1]}")
            entering = leaving
        return columns

    def _result(self) -> str:
        if self.operator == "+":
            return f"{self.left + self.right:04}"
        difference = self.left - self.right
        return f"{'-' if difference < 0 else '0'}{abs(difference):03}"


@lru_cache(maxsize=1)
def split() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the training problems ``[M]``, rising, and of the held-out ones ``[NUM_HELD_OUT]``, int64.

    A problem whose mirror, with exchanged operands, is held out is in neither.
    """
    total = len(OPERATORS) * OPERANDS**2
    held_out = np.random.default_rng(SPLIT_SEED).choice(total, NUM_HELD_OUT, replace=False)
    is_free = np.ones(total, dtype=bool)
    is_free[held_out] = False
    is_free[[Problem.of_number(int(number)).mirror.number for number in held_out]] = False
    return np.flatnonzero(is_free), held_out
