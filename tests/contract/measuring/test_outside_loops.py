"""What counts as a step outside loops."""

import pytest

from experiments.harness import run_outcome
from experiments.harness.arms import PLAIN
from experiments.harness.draw_checks import sum_of
from experiments.harness.findings.summary import tables_of
from experiments.harness.run_outcome import OutsideLoops
from oracles.factory.evaluation.loops import loop_mask
from tests.support.runs.hand_run import DRAFTED, hand

PHASES = ("propose", "score", "verify", "commit")


def records(steps: list[tuple[int, int, list[int]]]) -> dict[str, list[object]]:
    """Return the columns of steps (round, request, tokens), each of which took 1 + 2 + 3 + 4 s times its index."""
    columns: dict[str, list[object]] = {"round": [], "request": [], "tokens": []}
    for step in steps:
        for name, value in zip(columns, step, strict=True):
            columns[name].append(value)
    for i, phase in enumerate(PHASES, start=1):
        columns[f"seconds_{phase}"] = [float(i * k) for k in range(len(steps))]
    return columns


def test_a_step_counts_if_none_of_its_tokens_stands_in_a_loop():
    # Request 0 says 5 6 three times, from its second step on; request 1 is interleaved with it and says nothing twice.
    found = OutsideLoops.of(
        records([(0, 0, [1, 2]), (0, 1, [7]), (0, 0, [5, 6]), (0, 1, [8, 9]), (0, 0, [5, 6, 5, 6]), (0, 0, [3])])
    )
    assert (found.steps, found.tokens) == (4, 6)
    assert found.seconds == pytest.approx(10 * (0 + 1 + 3 + 5))
    assert (found.looped, found.emitted) == (6, 12)
    assert sum_of([found, found]).looped == 12


def test_a_step_that_enters_a_loop_does_not_count():
    found = OutsideLoops.of(records([(0, 0, [1, 5, 5]), (0, 0, [5, 2])]))
    assert (found.steps, found.tokens, found.seconds) == (0, 0, 0.0)


def test_rounds_are_texts_of_their_own():
    steps = [(0, 0, [4]), (0, 0, [4]), (1, 0, [4]), (1, 0, [4])]
    assert OutsideLoops.of(records(steps)).steps == 4
    assert OutsideLoops.of(records([(0, 0, tokens) for _, _, tokens in steps])).steps == 0


def test_units_without_steps_outside_loops_are_none_of_the_interval():
    assert OutsideLoops.of({}) == OutsideLoops(0, 0, 0.0)
    outcome = hand().outcome
    records = outcome.done[1]["arms"][DRAFTED]["records"]
    records["tokens"] = [[5] * len(tokens) for tokens in records["tokens"]]
    found = outcome.block_efficiency_outside(DRAFTED), outcome.speedup_outside(DRAFTED)
    assert [None if interval is None else interval.num_units for interval in found] == [2, 2]


def test_the_tables_of_a_run_search_each_text_for_loops_once(monkeypatch):
    made, searched = hand(), []
    monkeypatch.setattr(run_outcome, "loop_mask", lambda tokens: searched.append(tokens) or loop_mask(tokens))
    tables_of(made.outcome, {"arguments": {"oracle": "code"}})
    assert len(searched) == len(made.runs(PLAIN)) + len(made.runs(DRAFTED))
