"""The ranges of the arguments of limits."""

import math


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raise ValueError if ``value`` is no integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")


def check_positive(name: str, value: float) -> None:
    """Raise ValueError if ``value`` is no finite number above 0."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number > 0, got {value!r}")


def check_not_negative(name: str, value: float) -> None:
    """Raise ValueError if ``value`` is no finite number of at least 0."""
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")
