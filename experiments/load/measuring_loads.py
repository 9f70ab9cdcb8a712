"""One load after the other: first what a full batch of plain decoding serves, then every arm at every rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.harness.arms import PLAIN
from experiments.load.arrivals import at_rate, mean_rate, poisson_arrivals, read_arrivals
from experiments.load.latencies import Window, throughput
from experiments.load.load_arms import build_arms
from experiments.load.load_predictions import tokens_of
from experiments.load.load_tables import Load
from experiments.load.serving import Served, serve
from specdec import Oracle
from specdec.calibration_run import pass_seconds
from specdec.prompts import NamedPrompt

# So many batches of requests wait at the start when the capacity is measured.
BATCHES = 4
WARM_UP_TOKENS = 8
CAPACITY = "capacity"


@dataclass(frozen=True)
class Cell:
    """An arm at a rate, or the capacity; one unit of the journal."""

    index: int
    rate: float
    arm: str
    problem: str | None = None
    prompts: tuple[NamedPrompt, ...] = field(default=(), repr=False)

    @property
    def kind(self) -> str:
        """Its name."""
        return self.arm if self.arm == CAPACITY else f"{self.arm} at {self.rate:.3g} requests/s"


def cells_of(rates: Sequence[float], arms: Sequence[str]) -> list[Cell]:
    """Return the cells of some rates, the capacity's left out: each rate begins with another arm."""
    found: list[Cell] = []
    for number, rate in enumerate(rates):
        first = number % len(arms)
        for arm in (*arms[first:], *arms[:first]):
            found.append(Cell(1 + len(found), rate, arm))
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
    """Return the rates: those asked for, that of the file, or shares of the capacity."""
    if arguments["rates"] is not None:
        return sorted(set(arguments["rates"]))
    if arguments["arrivals"] is not None:
        return [mean_rate(read_arrivals(Path(arguments["arrivals"])))]
    return [share * capacity for share in sorted(set(arguments["loads"]))]


def doubling(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, and the number itself."""
    return sorted({2**power for power in range(most.bit_length())} | {most})


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

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Return the journal entry of a cell."""
        entry: dict[str, Any] = {"unit": cell.index, "kind": cell.kind, "error": None}
        if cell.arm == CAPACITY:
            return entry | self._capacity()
        times, _ = arrivals_of(self.arguments, cell.rate)
        return entry | {"served": self._serve(cell.arm, times).as_dict()}

    def load(self, cell: Cell, entry: Mapping[str, Any]) -> Load:
        """Return what a journal keeps of a cell."""
        served = Served.from_dict(entry["served"])
        return Load(cell.rate, cell.arm, served, arrivals_of(self.arguments, cell.rate)[1])

    def _serve(self, arm: str, times: Sequence[float]) -> Served:
        """Serve requests that arrive at some times, after two that warm the arm up."""
        arguments, chosen = self.arguments, self.arms[arm]
        starts = [self.prompts[number % len(self.prompts)].start for number in range(len(times))]
        options = {"batch_size": arguments["batch_size"], "sampling": chosen.sampling, "seed": arguments["seed"]}
        serve(chosen.decoder, starts[:2], [0.0] * len(starts[:2]), max_new_tokens=WARM_UP_TOKENS, **options)
        return serve(chosen.decoder, starts, times, max_new_tokens=arguments["max_new_tokens"], **options)

    def _capacity(self) -> dict[str, Any]:
        """Return the requests a second that plain decoding serves while all rows are in flight, and times of passes."""
        rows = self.arguments["batch_size"]
        served = self._serve(PLAIN, [0.0] * (BATCHES * rows))
        full = Window(0.0, max(request.seated for request in served.requests))
        capacity = throughput(served, full) / tokens_of([served])
        passes = {str(count): pass_seconds(self.oracle, self.widths, count) for count in doubling(rows)}
        return {"capacity": capacity, "widths": self.widths, "passes": passes}
