"""Interleaved rounds: every arm runs once a round; results are compared; medians with their range, paired ratios."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from specdec.contracts import IntArray

# The threads of an arm's runtime spin for some milliseconds after its last call; the next arm waits for their sleep.
PAUSE = 0.01


class Round(NamedTuple):
    """What an arm did in a round.

    Attributes:
        seconds: of a unit of its work.
        ids: that it made, -1 beyond the end of a row; None: it makes none.
        facts: what else there is to tell.
    """

    seconds: float
    ids: IntArray | None = None
    facts: Any = None


@dataclass(frozen=True)
class TimedArm:
    """One way to do a piece of work.

    Attributes:
        name: its own among the arms of a run.
        run: does the work once.
        twin: the arm that makes the same ids; None: there is none.
        strict: whether ids that differ from the twin's end the run; if not, the share of equal ids is kept.
    """

    name: str
    run: Callable[[], Round]
    twin: str | None = None
    strict: bool = True


@dataclass(frozen=True)
class Spread:
    """A median, and the lowest and highest value."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        """Return the spread of some values."""
        return Spread(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} .. {self.high:.2f})"


@dataclass
class Timings:
    """What the rounds of one group of arms showed.

    Attributes:
        seconds: arm -> a figure per round.
        agreement: arm -> share of the ids that equal its twin's, the lowest of all rounds.
        facts: arm -> what else it told, of each round.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    agreement: dict[str, float] = field(default_factory=dict)
    facts: dict[str, list[Any]] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        """Tell whether all of these arms ran."""
        return all(name in self.seconds for name in names)

    def spread(self, name: str) -> Spread:
        """Return an arm's seconds."""
        return Spread.of(self.seconds[name])

    def ratio(self, above: str, below: str) -> Spread:
        """Return the seconds of one arm over those of another, paired by round."""
        pairs = zip(self.seconds[above], self.seconds[below], strict=True)
        return Spread.of([a / b for a, b in pairs])

    def fastest(self, *names: str) -> str | None:
        """Return the arm with the lowest median of those that ran; None if none did."""
        ran = [name for name in names if self.has(name)]
        return min(ran, key=lambda name: self.spread(name).median, default=None)


def measure(arms: Sequence[TimedArm], rounds: int, title: str = "rounds") -> Timings:
    """Run every arm once unmeasured, then once a round, each round beginning with another arm.

    Args:
        arms: of different names.
        rounds: that are measured.
        title: of the progress bar.

    Raises:
        AssertionError: a strict arm made other ids than its twin, in a measured round or before.
        KeyError: an arm's twin is none of them.
    """
    timings = Timings({arm.name: [] for arm in arms}, facts={arm.name: [] for arm in arms})
    _compare(arms, {arm.name: arm.run() for arm in arms}, timings.agreement)
    for number in tqdm(range(rounds), desc=title):
        shift = number % max(len(arms), 1)
        made: dict[str, Round] = {}
        for arm in (*arms[shift:], *arms[:shift]):
            time.sleep(PAUSE)
            made[arm.name] = found = arm.run()
            timings.seconds[arm.name].append(found.seconds)
            timings.facts[arm.name].append(found.facts)
        _compare(arms, made, timings.agreement)
    return timings


def _compare(arms: Sequence[TimedArm], made: Mapping[str, Round], agreement: dict[str, float]) -> None:
    for arm in arms:
        twin = None if arm.twin is None else made[arm.twin]
        ids, others = made[arm.name].ids, None if twin is None else twin.ids
        if ids is None or others is None:
            continue
        if ids.shape != others.shape:
            raise AssertionError(f"{arm.name} made ids of shape {ids.shape}, and {arm.twin} {others.shape}")
        equal = ids == others
        if arm.strict and not equal.all():
            at = tuple(int(i) for i in np.argwhere(~equal)[0])
            raise AssertionError(f"{arm.name} disagrees with {arm.twin}, first at (row, token) {at}: no time counts")
        equal = equal[(ids >= 0) | (others >= 0)]  # where both rows have ended there are no ids to agree
        agreement[arm.name] = min(agreement.get(arm.name, 1.0), float(equal.mean()))


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was given; a CPU has done it already."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def waiting(action: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Return a call that ends when a device has done what the action gave it."""

    def act() -> None:
        action()
        wait_for(device)

    return act


def time_call(action: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def median_seconds(
    action: Callable[[], object], most: int, undo: Callable[[], object] = lambda: None, budget: float = 0.1
) -> float:
    """Return the median seconds of repeated calls, after one that warms up.

    Args:
        action: is timed.
        most: calls at most; at least 3 of them (or ``most``) are made even if they take longer than the budget.
        undo: runs after every call, untimed.
        budget: seconds.
    """
    times: list[float] = []
    while len(times) <= min(3, most) or (len(times) <= most and sum(times) < budget):
        times.append(time_call(action))
        undo()
    return statistics.median(times[1:])


def repeat(action: Callable[[], object], most: int, undo: Callable[[], object] = lambda: None) -> Round:
    """Return a round of repeated calls; see ``median_seconds``."""
    return Round(median_seconds(action, most, undo))


def doubling(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, and the number itself."""
    return sorted({2**power for power in range(most.bit_length())} | {most})
