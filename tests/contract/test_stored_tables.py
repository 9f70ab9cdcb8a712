"""The tables of a stored model beside llama.cpp, worked out by hand from seconds of two rounds."""

import pytest

from experiments.bench import stored
from experiments.bench.oracle.rounds import Timings

# Arm -> seconds in two rounds of a token of whole calls, of passes of 1, 8 and 16 nodes, and of a prompt.
SECONDS = {
    stored.BASE: {"decode": [0.01, 0.02], "1": [0.001, 0.003], "8": [0.002, 0.009], "16": [0.1, 0.3], "prompt": [1, 3]},
    stored.FILE: {"decode": [0.03, 0.04], "1": [0.002, 0.004], "8": [0.02, 0.06], "16": [0.4, 0.6], "prompt": [4, 6]},
}


@pytest.fixture
def rows() -> list[list[dict[str, object]]]:
    timings = Timings({f"{kind}, {arm}": list(made) for arm, kinds in SECONDS.items() for kind, made in kinds.items()})
    return [list(table.rows) for table in stored.tables(timings, list(SECONDS), 64, 100)]


def test_whole_calls_are_tokens_a_second_and_ratios_paired_by_round(rows: list[list[dict[str, object]]]) -> None:
    ours, theirs = rows[0]
    assert list(ours.values()) == [stored.BASE, "66.7", "1", "2000.0", "1"]
    # 0.03 / 0.01 and 0.04 / 0.02; 4 / 1 and 6 / 3.
    assert list(theirs.values()) == [stored.FILE, "28.6", "2.50 (2.00 .. 3.00)", "5000.0", "3.00 (2.00 .. 4.00)"]


def test_passes_are_milliseconds_and_ratios_of_the_same_width(rows: list[list[dict[str, object]]]) -> None:
    ours, theirs = rows[1]
    assert list(ours.values()) == [stored.BASE, "2.00", "5.50", "200.00", "1", "1", "1", "2.50 (2.00 .. 3.00)"]
    over = ["1.67 (1.33 .. 2.00)", "8.33 (6.67 .. 10.00)", "3.00 (2.00 .. 4.00)"]
    # Of its own: 0.02 / 0.002 and 0.06 / 0.004.
    assert list(theirs.values()) == [stored.FILE, "3.00", "40.00", "500.00", *over, "12.50 (10.00 .. 15.00)"]
