"""The tables of sweeps and of several runs beside one another."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from experiments.harness.arms import PLAIN
from experiments.report import across
from experiments.sweep import sweep_results
from experiments.sweep.grid import GridPoint
from tests.support.line_mutants import Differences, LineMutant, differences
from tests.support.runs.hand_run import DRAFTED, PEER, hand


def _arm(speed: float, tau: float, **passed: int) -> dict[str, Any]:
    def interval(value: float) -> dict[str, Any]:
        return {"all": {"value": value, "low": value / 2, "high": 2 * value, "num_units": 7}}

    speeds = {"decoding_alone": interval(2 * speed), "end_to_end": interval(speed)}
    counts = {"block_efficiency": tau, "acceptance_rate": tau / 4, "tokens_per_second": 100 * tau}
    return {**speeds, **counts, **passed, "prompts": 4}


def swept() -> Differences:
    """A grid of three units, of which one failed: rows of every other arm, the fastest of them, checks added up."""
    ways: list[Any] = [["a", 0], "b", 3]
    units = [GridPoint(n, {"length": n, "way": way}, ()) for n, way in enumerate(ways)]
    grid: Any = SimpleNamespace(units=units, experiment="x")
    draws = _arm(0.5, 1.5, sound=3)
    plain = _arm(1.0, 1.0, identical=4)
    found = [
        {PLAIN: plain, "x": _arm(3.0, 2.0, identical=4), "y": draws},
        None,
        {PLAIN: plain, "x": _arm(1.25, 3.0, identical=2)},
    ]
    with (
        patch.object(sweep_results, "result_of", lambda _, unit: {"error": None if found[unit.number] else "no luck"}),
        patch.object(sweep_results, "summary_of", lambda _, unit: {"arms": found[unit.number]}),
    ):
        rows = sweep_results.rows_of(grid, Path())
    table = sweep_results.table_of(grid, rows)
    told = {
        "units": [(row["unit"], row["arm"], row["length"], row["way"]) for row in rows],
        "first": [rows[0][name] for name in ("decoding_alone", "decoding_alone_low", "end_to_end", "end_to_end_high")],
        "parts": [(row["block_efficiency"], row["acceptance_rate"], row["tokens_per_second"]) for row in rows],
        "cells": [table.rows[0][name] for name in ("decoding alone", "end to end", "tau")],
        "outputs": [row["outputs"] for row in table.rows],
        "conclusion": sweep_results.conclusion(grid, rows),
    }
    expected = {
        "units": [("0000", "x", 0, "a 0"), ("0000", "y", 0, "a 0"), ("0002", "x", 2, "3")],
        "first": [6.0, 3.0, 3.0, 6.0],
        "parts": [(2.0, 0.5, 200.0), (1.5, 0.375, 150.0), (3.0, 0.75, 300.0)],
        "cells": ["6.00 [3.00, 12.00]", "3.00 [1.50, 6.00]", 2.0],
        "outputs": ["4/4 as plain", "3/4 sound draws", "2/4 as plain"],
        "conclusion": (
            "Fastest of 3: x with length 0, way a 0: decoding alone 6.00 [3.00, 12.00], end to end 3.00 [1.50, 6.00]. "
            "9 of 12 outputs are as they should be."
        ),
    }
    return differences(told, expected)


def runs() -> Differences:
    """A page's first table: of each run the arm that is fastest end to end; of one without times none."""
    made = hand(rounds=6, with_peer=True)
    facts = {"experiment": "compare", "processor": "p"}
    arguments = {"oracle": "o", "batch_size": 1, "temperature": 0.0}
    both: Any = [
        SimpleNamespace(label=f"{timed}", facts=facts, arguments=arguments, outcome=made.outcome, is_timed=timed)
        for timed in (True, False)
    ]
    first, second = across.overview(both)
    walls = {arm: sum(run.wall for run in made.runs(arm)) for arm in (PLAIN, DRAFTED, PEER)}
    best = min((DRAFTED, PEER), key=lambda arm: walls[arm])
    found = {
        "best": first["fastest"],
        "speed": first["end to end"].split(" ")[0],
        "untimed": [second[name] for name in ("fastest", "end to end", "verdict")],
    }
    expected = {"best": best, "speed": f"{walls[PLAIN] / walls[best]:.2f}", "untimed": [None] * 3}
    return differences(found, expected)


STATISTICS = (swept, runs)
MUTANTS = [
    LineMutant(*row)
    for row in (
        (sweep_results.rows_of, '(arm["sound"], "sound draws")', '(arm["prompts"], "sound draws")', swept, "outputs"),
        (sweep_results._cells_of, "[ALL]", "[ALL] and {}", swept, "first"),
        (sweep_results._is_number, "all(", "any(", swept, "units"),
        (sweep_results.table_of, 'row["block_efficiency"]', 'row["end_to_end"]', swept, "cells"),
        (sweep_results.conclusion, 'row["end_to_end"])', '-row["end_to_end"])', swept, "conclusion"),
        (across.overview, "max(others", "min(others", runs, "best"),
    )
]
