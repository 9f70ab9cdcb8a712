"""When requests arrive: a Poisson process, or the times of a file; open-loop, so that no answer is waited for."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def poisson_arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Return the times of a Poisson process in which as many requests arrive as the rate says: rate x seconds, rounded.

    Given their number, the arrivals are those of exponential gaps on a scale on which one more comes at the very end.

    Args:
        rate: requests a second, above 0.
        seconds: for how long requests arrive, above 0.
        seed: of the gaps.

    Returns:
        Seconds from the start, ascending; they may be none.
    """
    after = np.cumsum(np.random.default_rng(seed).standard_exponential(round(rate * seconds) + 1))
    times: list[float] = (seconds * after[:-1] / after[-1]).tolist()
    return times


def read_arrivals(path: Path) -> list[float]:
    """Return the times in a file: seconds, one a line, ascending; the first one is put at 0.

    Raises:
        ValueError: no such file, a line that is no time or earlier than the one before, or less than two different
            times.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--arrivals {path}: cannot be read ({error}); give a text file, a time a line") from error
    times: list[float] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        time = _time(line)
        if time is None or (times and time < times[-1]):
            raise ValueError(f"--arrivals {path}, line {number}: {line.strip()!r} is no time, or an earlier one: give "
                             "seconds in ascending order")  # fmt: skip
        times.append(time)
    if not times or times[-1] == times[0]:
        raise ValueError(f"--arrivals {path}: two different times at least make a rate")
    return [time - times[0] for time in times]


def _time(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def mean_rate(times: Sequence[float]) -> float:
    """Return the requests a second of arrivals that begin at 0: gaps over the time that they take."""
    return (len(times) - 1) / times[-1]


def at_rate(times: Sequence[float], rate: float) -> list[float]:
    """Return arrivals that begin at 0 on a scale on which their mean rate is another one."""
    factor = mean_rate(times) / rate
    return [factor * time for time in times]
