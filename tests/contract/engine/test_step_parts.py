"""A step in parts: what is put in comes out, by hand-written records, and the batch at which drafts stop paying."""

from typing import Any

import pytest

from experiments.harness.run_outcome import Outcome
from experiments.studies.crossover.__main__ import check, conclusions
from experiments.studies.crossover.batch_sizes import PHASES, REST, StepParts, step_times
from specdec.stats import Stats

A = {"propose": 0.25, "score": 8.0, "verify": 1.0, "commit": 0.5, "other": 0.25}
B = {"propose": 0.5, "score": 2.0, "verify": 0.25, "commit": 0.0, "other": 0.0}
C = {"propose": 1.0, "score": 0.5, "verify": 0.0, "commit": 0.125, "other": 0.0}


def linear(length: int) -> dict[str, float]:
    return {phase: A[phase] + (B[phase] + C[phase] * length if length else 0.0) for phase in PHASES}


def test_linear_steps_are_taken_apart() -> None:
    times = {length: linear(length) for length in (0, 1, 2, 4, 8)}
    parts = StepParts.of(times)
    assert parts.a == A
    assert parts.b == pytest.approx(B, abs=1e-12)
    assert parts.c == pytest.approx(C, abs=1e-12)
    assert parts.seconds(0) == 10.0
    assert parts.seconds(4) == pytest.approx(10.0 + 2.75 + 4 * 1.625)
    assert parts.seconds(3, REST) == pytest.approx(1.75 + 0.25 + 3 * 0.125)
    row = parts.row(times)
    assert list(row) == [
        *("a", "b", "c", "b propose", "c propose", "b score", "c score", "b rest", "c rest"),
        *(f"k = {length}" for length in (1, 2, 4, 8)),
    ]
    found = [row[name] for name in ("a", "b", "c", "b score", "c propose", "c rest")]
    assert found == pytest.approx([10_000, 2_750, 1_625, 2_000, 1_000, 125])
    assert {row[name] for name in row if name.startswith("k =")} <= {"+0.0%", "-0.0%"}


def test_what_is_not_linear_is_left_over() -> None:
    times = {length: dict.fromkeys(PHASES, 0.0) for length in (0, 1, 2, 3)}
    for length, seconds in {0: 10.0, 1: 12.0, 2: 17.0, 3: 16.0}.items():
        times[length]["score"] = seconds
    parts = StepParts.of(times)
    # The line through (1, 2), (2, 7), (3, 6) is 1 + 2 k.
    assert (parts.b["score"], parts.c["score"]) == pytest.approx((1.0, 2.0))
    row = parts.row(times)
    shares = [12 / 13 - 1, 17 / 15 - 1, 16 / 17 - 1]
    assert [row[f"k = {k}"] for k in (1, 2, 3)] == [f"{share:+.1%}" for share in shares]


def test_steps_are_timed_with_all_rows_and_whole_drafts() -> None:
    """Two rows: each has half of a step's time; in step 3 one row's draft is cut short, and step 4 has one row left."""
    seconds = {0: 2.0, 1: 3.0, 2: 10.0, 3: 99.0, 4: 99.0}
    rows = [(step, depth) for step in (0, 1, 2) for depth in (4, 4)] + [(3, 4), (3, 2), (4, 4)]
    shares = [seconds[step] / (1 if step == 4 else 2) for step, _ in rows]
    columns: dict[str, Any] = {
        "step": [step for step, _ in rows],
        "round": [0] * len(rows),
        "draft_depth": [depth for _, depth in rows],
        **{f"seconds_{phase}": [share * part for share in shares] for phase, part in
           {"propose": 1.0, "score": 2.0, "verify": 0.5, "commit": 0.25}.items()},
    }  # fmt: skip
    stats = Stats(target_calls=5, seconds={"other": 2.5}).as_dict()
    outcome = Outcome(["x"], [{"error": None, "kind": "all", "arms": {"x": {"stats": stats, "records": columns}}}])
    expected = {"propose": 3.0, "score": 6.0, "verify": 1.5, "commit": 0.75, "other": 0.5}
    assert step_times(outcome, "x", 4, 2) == pytest.approx(expected)
    assert step_times(outcome, "x", 2, 2) is None
    # Steps of the same number in another round are others.
    columns["round"] = [0, 0, 1, 1, 2, 2, 0, 0, 0]
    columns["step"] = [0, 0, 0, 0, 0, 0, 3, 3, 4]
    assert step_times(outcome, "x", 4, 2) == pytest.approx(expected)


def test_the_conclusions_name_both_batches() -> None:
    rows = [
        {"batch": batch, "k": k, "decoding alone": measured, "predicted": predicted}
        for batch, k, measured, predicted in [
            (1, 2, 1.5, 1.1), (1, 4, 0.9, 1.2), (4, 2, 0.5, 0.9), (4, 4, 0.5, 1.1),
        ]
    ]  # fmt: skip
    assert [*conclusions(rows)] == [
        "k = 2: pays to batch 2 as measured, pays to batch 2 as predicted.",
        "k = 4: does not pay at batch 1 as measured, pays at every batch to 4 as predicted.",
    ]


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="--draft-lengths: two at least"):
        check({"draft_lengths": [4], "batch_sizes": [1]}, 8)
    with pytest.raises(ValueError, match="--num-prompts: 7 prompts fit the oracle, and the largest batch has 8 rows"):
        check({"draft_lengths": [1, 4], "batch_sizes": [1, 8]}, 7)
    check({"draft_lengths": [1, 4], "batch_sizes": [1, 8]}, 8)
