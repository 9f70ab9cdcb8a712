"""When requests arrive, and one load after the other: first what a full batch serves, then every arm at every rate."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.arms import PLAIN, EngineArm
from experiments.harness.journal import Piece
from experiments.harness.rounds import doubling
from experiments.harness.running import WARM_UP_TOKENS
from experiments.load.load_arms import build_arms
from experiments.load.load_predictions import tokens_of
from experiments.load.serving import Load, LoadRun, Window, serve
from specdec import Oracle
from specdec.calibration_run import pass_seconds
from specdec.prompts import NamedPrompt
from specdec.requests import Prompt

# Rates if nobody says any, as shares of what plain decoding serves with all rows.
LOADS = (0.25, 0.5, 0.75, 1.0, 1.25)


def poisson_arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Return the times of a Poisson process with a fixed number of arrivals: rate x seconds, rounded.

    Given their number, the arrivals have exponential gaps, scaled so that one more arrival would come at the very end.

    Args:
        rate: requests a second, above 0.
        seconds: for how long requests arrive, above 0.
        seed: of the gaps.

    Returns:
        Seconds from the start, ascending; there may be none.
    """
    after = np.cumsum(np.random.default_rng(seed).standard_exponential(round(rate * seconds) + 1))
    times: list[float] = (seconds * after[:-1] / after[-1]).tolist()
    return times


def read_arrivals(path: Path) -> list[float]:
    """Return the times in a file: seconds, one a line, ascending; the first one is put at 0.

    Raises:
        ValueError: no such file, a line that is no time or is earlier than the one before, or fewer than two
            different times.
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
    """Return the requests a second of arrivals that begin at 0: the number of gaps over their time."""
    return (len(times) - 1) / times[-1]


def at_rate(times: Sequence[float], rate: float) -> list[float]:
    """Return arrivals that begin at 0, rescaled to another mean rate."""
    factor = mean_rate(times) / rate
    return [factor * time for time in times]


# So many batches of requests wait at the start when the capacity is measured.
BATCHES = 4
CAPACITY = "capacity"


@dataclass(frozen=True)
class LoadCell(Piece):
    """An arm at a rate, or the capacity; one unit of the journal.

    Attributes:
        rate: requests a second; 0 for the capacity.
        arm: its name, or ``CAPACITY``.
    """

    rate: float
    arm: str


def cells_of(rates: Sequence[float], arms: Sequence[str]) -> list[LoadCell]:
    """Return the cells of some rates, the capacity's left out: each rate begins with another arm."""
    found: list[LoadCell] = []
    for number, rate in enumerate(rates):
        first = number % len(arms)
        for arm in (*arms[first:], *arms[:first]):
            found.append(LoadCell(1 + len(found), f"{arm} at {rate:.3g} requests/s", rate, arm))
    return found


def arrivals_of(arguments: Mapping[str, Any], rate: float) -> tuple[list[float], Window]:
    """Return when requests arrive at a rate, and the time that counts.

    Raises:
        ValueError: the file is unusable, or no request arrives in that time.
    """
    if arguments["arrivals"] is None:
        end = arguments["seconds"]
        times = poisson_arrivals(rate, end, arguments["seed"])
    else:
        times = at_rate(read_arrivals(Path(arguments["arrivals"])), rate)
        end = times[-1]
    window = Window(arguments["warm_up"] * end, end)
    if not any(map(window.holds, times)):
        told = f"no request of {rate:.3g} a second arrives in the {window.seconds:.3g} s that count"
        raise ValueError(f"{told}: give more --seconds or a higher rate")
    return times, window


def rates_of(arguments: Mapping[str, Any], capacity: float) -> list[float]:
    """Return the rates: those asked for, that of the file, or shares of the capacity.

    Raises:
        ValueError: see ``arrivals_of``.
    """
    if arguments["rates"] is not None:
        rates = sorted(set(arguments["rates"]))
    elif arguments["arrivals"] is not None:
        rates = [mean_rate(read_arrivals(Path(arguments["arrivals"])))]
    else:
        rates = [share * capacity for share in sorted(set(arguments["loads"] or LOADS))]
    for rate in rates:
        arrivals_of(arguments, rate)
    return rates


class Loads:
    """Measure one cell after the other.

    Args:
        arguments: of the command line.
        oracle: shared by all arms.
        prompts: that fit it; requests take them in turn.

    Raises:
        ValueError: see ``build_arms``.
    """

    def __init__(self, arguments: Mapping[str, Any], oracle: Oracle, prompts: Sequence[NamedPrompt]) -> None:
        self.arguments, self.oracle, self.prompts = arguments, oracle, prompts
        self.arms = build_arms(arguments, oracle)
        self.widths = doubling(1 + max(int(arm.decoder.offers.max_nodes) for arm in self.arms.values()))

    def measure(self, cell: LoadCell) -> dict[str, Any]:
        """Return what the journal keeps of a cell."""
        if cell.arm == CAPACITY:
            return self._capacity()
        times, _ = arrivals_of(self.arguments, cell.rate)
        return {"served": self._serve(cell.arm, times).as_dict()}

    def load(self, cell: LoadCell, entry: Mapping[str, Any]) -> Load:
        """Return what a journal keeps of a cell."""
        served = LoadRun.from_dict(entry["served"])
        return Load(cell.rate, cell.arm, served, arrivals_of(self.arguments, cell.rate)[1])

    def _serve(self, arm: str, times: Sequence[float]) -> LoadRun:
        """Serve requests that arrive at some times, after two that warm the arm up."""
        chosen, starts = self.arms[arm], [self.prompts[i % len(self.prompts)].start for i in range(len(times))]
        self._decode(chosen, starts[:2], [0.0] * len(starts[:2]), WARM_UP_TOKENS)
        return self._decode(chosen, starts, times, self.arguments["max_new_tokens"])

    def _decode(self, arm: EngineArm, starts: Sequence[Prompt], times: Sequence[float], new: int) -> LoadRun:
        seed, make = self.arguments["seed"], arm.decoder.request
        requests = [make(start, new, arm.sampling, (seed, number)) for number, start in enumerate(starts)]
        return serve(arm.decoder, requests, times, self.arguments["batch_size"])

    def _capacity(self) -> dict[str, Any]:
        """Return the requests a second that plain decoding serves while all rows are in flight, and times of passes."""
        rows = self.arguments["batch_size"]
        served = self._serve(PLAIN, [0.0] * (BATCHES * rows))
        full = Window(0.0, max(request.seated for request in served.requests))
        capacity = Load(0.0, PLAIN, served, full).throughput / tokens_of([served])
        passes = {str(count): pass_seconds(self.oracle, self.widths, count) for count in doubling(rows)}
        return {"capacity": capacity, "widths": self.widths, "passes": passes}
