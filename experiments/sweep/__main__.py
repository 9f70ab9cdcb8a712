"""Run an experiment at every point of a grid of options, print one table, and write it as CSV and parquet.

``python -m experiments.sweep grid.toml`` reads a file such as::

    experiment = "compare"            # or a strategy, such as "prompt_lookup"

    [options]                         # for every unit, named as on the experiment's command line
    strategies = ["prompt_lookup"]
    num-prompts = 8

    [grid]                            # every combination is a unit
    prompt-lookup-num-draft-tokens = [2, 4, 8]
    temperature = [0, 0.8]

``torchrun --nproc-per-node 4 -m experiments.sweep grid.toml`` starts four workers. So does the plain command, started
four times with --threads, without which the first takes all cores. On several machines give all workers the same --out,
in a shared folder. Each worker claims units there, and as many cores of its own as it has threads. While others hold
too many cores, or a unit's device, it says so and waits: no time is measured on shared ones. If a worker dies, the
others do its units, and an interrupted sweep goes on. (torchrun ends all of its workers if one is killed; start it
again, or give it --max-restarts.)
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from exactspec.ending import as_program
from exactspec.parser import Parser, command_like_this, positive, refusing
from experiments.sweep.grid import GRID, Grid, GridPoint, read_grid
from experiments.sweep.sweep_results import CSV, PARQUET, conclusion, rows_of, table_of, write_tables
from experiments.sweep.working import Seat, Worker, result_of
from specdec.stats.report import show
from specdec.system import keep_first, write_whole


def failures(grid: Grid, folder: Path) -> list[str]:
    """Return the units that failed, with the last line of why."""
    found = [(unit, result_of(folder, unit)) for unit in grid.units]
    return [
        f"{unit.name} {unit.chosen}: {one['error'].strip().splitlines()[-1]}"
        for unit, one in found
        if one is not None and one["error"] is not None
    ]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("file", type=Path, help="the grid, as TOML")
    add("--out", type=Path, help="folder shared by all workers (runs/sweep-NAME OF THE FILE)")
    add("--threads", type=positive, help="torch threads of a worker (an equal share of the cores)")
    add("--retry", action="store_true", help="run failed units again")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Work until all units are done; the first worker of each machine writes and prints the table."""
    arguments = parse(argv)
    folder = arguments.out or Path("runs") / f"sweep-{arguments.file.stem}"
    with refusing("sweep"):
        grid = read_grid(arguments.file)
        seat = Seat.here(arguments.threads)
        keep_grid(folder, arguments.file, grid)
        Worker(grid, folder, seat, arguments.retry).work()
    if seat.rank:  # torchrun would end the one that prints as soon as another one returns 1
        return 0
    rows, failed = rows_of(grid, folder), failures(grid, folder)
    if rows:
        write_tables(rows, folder)
        show([conclusion(grid, rows), table_of(grid, rows)])
    print(f"\nWritten: {folder}" + (f" (rows: {CSV}, {PARQUET})" if rows else ""))
    page = f"Side by side, with charts: {command_like_this('experiments.report')} {shlex.quote(str(folder))}"
    print(page if rows else "No unit ended well.")
    if failed:
        print("\n".join(["FAILED:", *failed]), file=sys.stderr)
    return 1 if failed else 0


def keep_grid(folder: Path, file: Path, grid: Grid) -> None:
    """Keep the grid's file in the folder; refuse it if a unit that the folder has a result of would be another one.

    Raises:
        ValueError: it would, or the folder cannot be written.
    """
    content = file.read_text(encoding="utf-8")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        keep_first(folder / GRID, content)
        if (folder / GRID).read_text(encoding="utf-8") != content:
            check_same(folder, grid)
            write_whole(folder / GRID, content)
    except OSError as error:
        raise ValueError(f"--out: {folder} cannot be written: {error}") from error


def check_same(folder: Path, grid: Grid) -> None:
    """Refuse another grid for a folder if it would lose a unit that ended well there; a longer one goes on.

    Raises:
        ValueError: it would; with the unit.
    """
    kept, units = read_grid(folder / GRID), {unit.number: unit for unit in grid.units}
    for old in kept.units:
        found, new = result_of(folder, old), units.get(old.number)
        if found is None or found["error"] is not None:
            continue
        if new is None or (kept.experiment, old.argv) != (grid.experiment, new.argv):
            was, now = _words(kept, old), "not there" if new is None else _words(grid, new)
            raise ValueError(f"{folder} holds unit {old.name} {was}; here it is {now}: give another --out")


def _words(grid: Grid, unit: GridPoint) -> str:
    return f"{grid.experiment} {shlex.join(unit.argv)}"


if __name__ == "__main__":
    as_program(main)
