"""What a sweep found: its rows as data, in files beside the units' own, as a table, and in a sentence."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.arms import PLAIN
from experiments.outcome import ALL
from experiments.sweep.grid import GRID, Grid, read_grid
from experiments.sweep.working import result_of, run_of, summary_of
from specdec.intervals import Interval
from specdec.result_table import Table
from specdec.whole_file import write_whole

CSV, PARQUET = "sweep.csv", "sweep.parquet"
LEGEND = {
    "speed-up": "plain decoding's wall time over the arm's, prefill included",
    "tau": "tokens per verify pass of a row",
    "alpha": "accepted given reached",
    "outputs": "how many are plain decoding's, or draws that have their length and come again with their seed",
}


def rows_of(grid: Grid, folder: Path) -> list[dict[str, Any]]:
    """Return a row for every arm beside plain decoding, of every unit that ended well, as plain numbers and texts.

    An axis is a number if all its values are. ``speedup`` has bounds (None: too few units; all None on recorded text,
    which has no times); ``passed`` of ``prompts`` outputs are as ``check`` says.
    """
    axes = {name: _is_number([unit.chosen[name] for unit in grid.units]) for name in grid.units[0].chosen}
    rows = []
    for unit in grid.units:
        found = result_of(folder, unit)
        if found is None or found["error"] is not None:
            continue
        for name, arm in summary_of(folder, unit)["arms"].items():
            if name == PLAIN:
                continue
            times = arm["speedup"][ALL] if "speedup" in arm else dict.fromkeys(("value", "low", "high", "num_units"))
            passed, check = (arm["identical"], "as plain") if "identical" in arm else (arm["sound"], "sound draws")
            rows.append(
                {
                    "unit": unit.name,
                    **{key: value if axes[key] else _words(value) for key, value in unit.chosen.items()},
                    "arm": name,
                    "speedup": times["value"],
                    "speedup_low": times["low"],
                    "speedup_high": times["high"],
                    "num_units": times["num_units"],
                    "tokens_per_second": arm.get("tokens_per_second"),
                    "block_efficiency": arm.get("block_efficiency"),
                    "acceptance_rate": arm.get("acceptance_rate"),
                    "passed": passed,
                    "prompts": arm["prompts"],
                    "check": check,
                }
            )
    return rows


def _is_number(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _speedup(row: Mapping[str, Any]) -> str | None:
    if row["speedup"] is None:
        return None
    return str(Interval(row["speedup"], row["speedup_low"], row["speedup_high"], row["num_units"]))


def table_of(grid: Grid, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of some rows, of which there is at least one."""
    axes = [*grid.units[0].chosen]
    shown = [
        {
            **{name: str(row[name]) for name in axes},
            "arm": row["arm"],
            "speed-up": _speedup(row),
            "tau": row["block_efficiency"],
            "alpha": row["acceptance_rate"],
            "outputs": f"{row['passed']}/{row['prompts']} {row['check']}",
        }
        for row in rows
    ]
    return Table(f"Sweep of {grid.experiment}", shown, legend=LEGEND)


def conclusion(grid: Grid, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return which arm is fastest and where, of at least one row, and how many outputs passed their check."""
    passed, prompts = (sum(row[name] for row in rows) for name in ("passed", "prompts"))
    checked = f"{passed} of {prompts} outputs are as they should be."
    timed = [row for row in rows if row["speedup"] is not None]
    if not timed:
        return f"No model ran, so that times mean nothing. {checked}"
    best = max(timed, key=lambda row: row["speedup"])
    where = ", ".join(f"{name} {best[name]}" for name in grid.units[0].chosen)
    return f"Fastest of {len(rows)}: {best['arm']} with {where}, {_speedup(best)} times plain decoding. {checked}"


def write_tables(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the rows into the folder, as CSV and as parquet; an empty cell of the CSV is None."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(folder / CSV, text.getvalue())
    pq.write_table(pa.Table.from_pylist([*rows]), folder / PARQUET)


@dataclass(frozen=True)
class SweepRuns:
    """The runs of a sweep's folder.

    Attributes:
        labels: folder of each unit that ended well -> its point of the grid.
        left_out: the others, with the reason.
    """

    labels: dict[Path, str]
    left_out: tuple[str, ...]

    @staticmethod
    def of(folder: Path) -> "SweepRuns":
        """Return them.

        Raises:
            ValueError: the grid or a unit's file is unreadable, or no unit has ended well.
        """
        labels, left_out = {}, []
        for unit in read_grid(folder / GRID).units:
            point = ", ".join(f"{name} {_words(value)}" for name, value in unit.chosen.items())
            found = result_of(folder, unit)
            if found is None:
                left_out.append(f"{unit.name} ({point}): not done yet")
            elif found["error"] is not None:
                left_out.append(f"{unit.name} ({point}): failed, {found['error'].strip().splitlines()[-1]}")
            else:
                labels[run_of(folder, unit)] = f"{unit.name}: {point}"
        if not labels:
            raise ValueError(f"RUN {folder}: no unit of this sweep has ended well; run its command again")
        return SweepRuns(labels, tuple(left_out))


def is_sweep(folder: Path) -> bool:
    """Tell whether a sweep wrote a folder."""
    return (folder / GRID).is_file()
