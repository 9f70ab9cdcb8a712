"""The ranges of arguments: of theory, and counts anywhere."""

import math
from numbers import Integral


def check_alpha(alpha: float) -> None:
    """Raise ValueError if ``alpha`` is no probability."""
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is a probability: expected a number in [0, 1], got {alpha!r}")


def check_whole(name: str, value: float, least: int) -> None:
    """Raise ValueError if a number is no integer >= ``least``; a whole float is one, a truth value is none."""
    if isinstance(value, bool) or not (math.isfinite(value) and value == int(value) and value >= least):
        raise ValueError(f"{name}: expected an integer >= {least}, got {value!r}")


def check_cost(name: str, cost: float) -> None:
    """Raise ValueError if a number is no ratio of times."""
    if not (cost >= 0.0 and math.isfinite(cost)):
        raise ValueError(f"{name} is a ratio of times: expected a finite number >= 0, got {cost!r}")


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raise ValueError if ``value`` is no integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer, {least} or more, not {value!r}")


def check_positive(name: str, value: float) -> None:
    """Raise ValueError if ``value`` is no finite number above 0."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number > 0, got {value!r}")
