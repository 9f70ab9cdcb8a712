"""What a sweep found: its rows as data, in files beside the units' own, as a table, and in a sentence."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.harness.arms import PLAIN
from experiments.harness.run_outcome import ALL, DECODING_ALONE, END_TO_END, SPEEDS
from experiments.sweep.grid import GRID, Grid, read_grid
from experiments.sweep.working import result_of, run_of, summary_of
from specdec.stats import Table
from specdec.stats.report import Interval
from specdec.system import write_whole

CSV, PARQUET = "sweep.csv", "sweep.parquet"
_RATIOS = (DECODING_ALONE, END_TO_END)
LEGEND = {
    **SPEEDS,
    "tau": "tokens per verify pass of a row",
    "alpha": "of the draft tokens that the verdict reached, the share accepted",
    "outputs": "how many are plain decoding's, or draws of the right length that their seed gives again",
}


def rows_of(grid: Grid, folder: Path) -> list[dict[str, Any]]:
    """Return a row for every arm beside plain decoding, of every unit that ended well, as plain numbers and texts.

    An axis is a number if all its values are. ``decoding_alone`` and ``end_to_end`` have bounds (None: too few units;
    all None on recorded text, which has no times, and decoding alone of a peer); ``passed`` of ``num_prompts`` outputs
    are as ``check`` says.
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
            passed, check = (arm["identical"], "as plain") if "identical" in arm else (arm["sound"], "sound draws")
            rows.append(
                {
                    "unit": unit.name,
                    **{key: value if axes[key] else _words(value) for key, value in unit.chosen.items()},
                    "arm": name,
                    **{key: value for ratio in _RATIOS for key, value in _cells_of(arm, ratio).items()},
                    "num_units": arm["end_to_end"][ALL]["num_units"] if "end_to_end" in arm else None,
                    "tokens_per_second": arm.get("tokens_per_second"),
                    "block_efficiency": arm.get("block_efficiency"),
                    "acceptance_rate": arm.get("acceptance_rate"),
                    "passed": passed,
                    "num_prompts": arm["prompts"],
                    "check": check,
                }
            )
    return rows


def _is_number(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _cells_of(arm: Mapping[str, Any], ratio: str) -> dict[str, float | None]:
    """Return the columns of one of the two ratios: the key of a summary, and the same with what its bounds are."""
    key = ratio.replace(" ", "_")
    found = (arm.get(key) or {ALL: {}})[ALL]
    return {f"{key}{end and f'_{end}'}": found.get(end or "value") for end in ("", "low", "high")}


def _speeds(row: Mapping[str, Any]) -> dict[str, str | None]:
    """Return both ratios of a row as tables have them."""
    bounds = {ratio: [row[name] for name in _cells_of({}, ratio)] for ratio in _RATIOS}
    return {
        ratio: None if value is None else str(Interval(value, low, high, row["num_units"]))
        for ratio, (value, low, high) in bounds.items()
    }


def table_of(grid: Grid, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of some rows, of which there is at least one."""
    axes = [*grid.units[0].chosen]
    shown = [
        {
            **{name: str(row[name]) for name in axes},
            "arm": row["arm"],
            **_speeds(row),
            "tau": row["block_efficiency"],
            "alpha": row["acceptance_rate"],
            "outputs": f"{row['passed']}/{row['num_prompts']} {row['check']}",
        }
        for row in rows
    ]
    return Table(f"Sweep of {grid.experiment}", shown, legend=LEGEND)


def conclusion(grid: Grid, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return which arm is fastest and where, of at least one row, and how many outputs passed their check."""
    passed, prompts = (sum(row[name] for row in rows) for name in ("passed", "num_prompts"))
    checked = f"{passed} of {prompts} outputs are as they should be."
    timed = [row for row in rows if row["end_to_end"] is not None]
    if not timed:
        return f"No model ran, so that times mean nothing. {checked}"
    best = max(timed, key=lambda row: row["end_to_end"])
    where = ", ".join(f"{name} {best[name]}" for name in grid.units[0].chosen)
    speeds = ", ".join(f"{name} {ratio}" for name, ratio in _speeds(best).items() if ratio is not None)
    return f"Fastest of {len(rows)}: {best['arm']} with {where}: {speeds}. {checked}"


def write_tables(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the rows into the folder, as CSV and as parquet; an empty cell of the CSV is None."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(folder / CSV, text.getvalue())
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([*rows]), content)
    write_whole(folder / PARQUET, content.getvalue())


def runs_of(folder: Path) -> tuple[dict[Path, str], list[str]]:
    """Return the runs of a sweep's folder.

    Returns:
        The folder of each unit that ended well -> its point of the grid; the other units, with the reason.

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
    return labels, left_out


def is_sweep(folder: Path) -> bool:
    """Tell whether a sweep wrote a folder."""
    return (folder / GRID).is_file()
