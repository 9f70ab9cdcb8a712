"""What a part of the benchmark is, and what its tables are made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from experiments.bench.oracle.bench_options import BenchOptions
from experiments.bench.oracle.rounds import Spread, TimedArm, Timings

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """The rounds of one subject with one number of threads.

    Attributes:
        subject: name of a shape, or of an embedded checkpoint.
        threads: of torch, and of llama.cpp.
        models: of the subject.
        options: of the run.
        timings: what the arms took.
    """

    subject: str
    threads: int
    models: Any
    options: BenchOptions
    timings: Timings

    def row(self, **cells: Any) -> Row:
        """Return a row of a table that begins with threads and subject."""
        return {"threads": self.threads, "model": self.subject, **cells}

    def time_row(self, name: str, **cells: Any) -> Row:
        """Return a row with the milliseconds of an arm."""
        spread = self.timings.spread(name)
        span = f"{spread.low * 1e3:.3f} .. {spread.high * 1e3:.3f}"
        return self.row(**cells, **{"median ms": f"{spread.median * 1e3:.3f}", "range": span})

    def ratio(self, above: str | None, below: str | None) -> Spread | None:
        """Return the seconds of one arm over another's; None where one did not run."""
        if above is None or below is None or not self.timings.has(above, below):
            return None
        return self.timings.ratio(above, below)


@dataclass(frozen=True)
class Goal:
    """A line of the summary: what is wanted, and what was measured.

    Attributes:
        what: is compared, with which shape.
        least: that is demanded; "" where nothing is.
        aim: that is hoped for.
        measured: by this run.
    """

    what: str
    least: str
    aim: str
    measured: Spread


@dataclass(frozen=True)
class Part:
    """A part of the benchmark.

    Attributes:
        title: of its table.
        on: whether it measures the shapes or the embedded pair.
        arms: makes them for a subject's models.
        rows: of its table, for one subject and number of threads.
        goals: lines of the summary, for the same.
        note: stands below the title.
    """

    title: str
    on: Literal["shapes", "pair"]
    arms: Callable[[Any, BenchOptions], list[TimedArm]]
    rows: Callable[[Measured], Sequence[Row]]
    goals: Callable[[Measured], Sequence[Goal]]
    note: str = ""


def goals_of(
    what: str, goals: Mapping[str, tuple[str, str]], key: str, measured: Spread | None, share: bool = False
) -> list[Goal]:
    """Return a goal, if its arms ran; what no goal is set for stands there without one.

    Args:
        what: is compared.
        goals: key -> at least, aim.
        key: of ``goals``.
        measured: None where an arm did not run.
        share: the figure is a share: in per cent.
    """
    if measured is None:
        return []
    least, aim = goals.get(key, ("", ""))
    scaled = Spread(*(100 * value for value in (measured.median, measured.low, measured.high))) if share else measured
    return [Goal(what, least, aim, scaled)]
