"""The ranges of arguments, anywhere: shares, counts, finite numbers, flags. Strings and bools are no numbers."""

import math
from numbers import Integral, Real
from typing import Any

import numpy as np


def check_share(name: str, value: Any) -> None:
    """Raise ValueError if ``value`` is no number in [0, 1]."""
    if not (_is_number(value) and 0.0 <= value <= 1.0):
        raise ValueError(f"{name} must be a number in [0, 1], not {value!r}")


def check_finite(name: str, value: Any) -> None:
    """Raise ValueError if ``value`` is no finite number of 0 or more."""
    if not (_is_number(value) and 0.0 <= value < math.inf):
        raise ValueError(f"{name} must be a finite number, 0 or more, not {value!r}")


def check_positive(name: str, value: Any) -> None:
    """Raise ValueError if ``value`` is no finite number above 0."""
    if not (_is_number(value) and 0.0 < value < math.inf):
        raise ValueError(f"{name} must be a finite number above 0, not {value!r}")


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise ValueError if ``value`` is no integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer, {least} or more, not {value!r}")


def check_flag(name: str, value: Any) -> None:
    """Raise ValueError if ``value`` is neither True nor False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
