"""The file of a sweep: an experiment, options that all units share, and a grid of others."""

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from experiments.harness.running import COMPARE, plan_of
from experiments.harness.study import Plan
from experiments.strategies import STRATEGIES

EXPERIMENTS = (COMPARE, *STRATEGIES)
# A sweep's folder keeps its file under this name.
GRID = "grid.toml"
_TABLES = {"experiment", "options", "grid"}
# What a sweep itself says of its units.
_OWN = {"out", "threads", "fresh"}


@dataclass(frozen=True)
class GridPoint:
    """One point of the grid.

    Attributes:
        number: from 0, in the order of the file.
        chosen: option -> value, of the grid's options only.
        argv: the whole command line.
    """

    number: int
    chosen: dict[str, Any]
    argv: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the unit's folder: its number, in four digits or more."""
        return f"{self.number:04d}"


@dataclass(frozen=True)
class Grid:
    """A sweep.

    Attributes:
        experiment: "compare", or a strategy, which is run with its variants.
        units: all points.
    """

    experiment: str
    units: tuple[GridPoint, ...]

    def plan(self, unit: GridPoint, out: Path, threads: int) -> Plan:
        """Return what a unit runs."""
        return plan_of(self.experiment, [*unit.argv, "--out", str(out), "--threads", str(threads)])


def read_grid(path: Path) -> Grid:
    """Return the sweep that a TOML file describes; every unit's command line has been parsed.

    Raises:
        ValueError: the file is absent or no TOML, names an unknown experiment or table, or has no grid.
        SystemExit: a unit's options are refused, by the parser of its experiment.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no readable TOML file: {error}") from error
    unknown, experiment = set(content) - _TABLES, content.get("experiment", COMPARE)
    if unknown:
        known = ", ".join(sorted(_TABLES))
        raise ValueError(
            f"{path} has the entries {sorted(unknown)}; known: {known}. Options of all units go under [options]"
        )
    if experiment not in EXPERIMENTS:
        raise ValueError(f"{path}: experiment is {experiment!r}; choose one of {', '.join(EXPERIMENTS)}")
    axes, fixed = content.get("grid", {}), content.get("options", {})
    if not (isinstance(axes, dict) and isinstance(fixed, dict)):
        raise ValueError(f"{path}: [options] and [grid] are tables of options")
    if own := _OWN & {*axes, *fixed}:
        raise ValueError(f"{path}: {', '.join(sorted(own))} cannot be among the options: they are the sweep's own")
    wrong = [name for name, values in axes.items() if not isinstance(values, list) or not values]
    if not axes or wrong:
        raise ValueError(f"{path}: give [grid] options with a list of values each; {wrong or 'there are none'}")
    units = []
    for number, values in enumerate(product(*axes.values())):
        chosen = dict(zip(axes, values, strict=True))
        units.append(GridPoint(number, chosen, tuple(_argv({**fixed, **chosen}))))
    grid = Grid(experiment, tuple(units))
    for unit in units:
        try:
            grid.plan(unit, Path("unused"), 1)
        except SystemExit:
            print(f"so says {path}, unit {unit.name} {unit.chosen}", file=sys.stderr)
            raise
    return grid


def _argv(options: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command line; a list is an option's several values."""
    words = []
    for name, value in options.items():
        words += [f"--{name}", *map(_word, value if isinstance(value, list) else [value])]
    return words


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
