"""Advice: its last words, and the command line."""

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import drafts
from experiments.advise import cells
from experiments.advise.__main__ import advice, main, report
from experiments.advise.advice_parts import CLOSE, Parts
from experiments.advise.calibrating import to_time
from experiments.advise.cells import Advice
from experiments.harness.arms import Unit
from experiments.strategies import text_strategies
from experiments.studies.crossover import __main__ as crossover
from specdec.prompts import NamedPrompt
from specdec.stats.report.intervals import Interval
from specdec.stats.result_table import Table, count_of
from tests.support.runs.experiments import all_own, common, read_json, the_folder


def test_the_advice_is_the_best_that_was_measured() -> None:
    # (a) is ahead decoding alone, (b) end to end, which decides; nothing is said of (c) but that it is fast.
    rows = [
        row("a", "2 tokens", 1.4, Interval(1.2, 1.1, 1.31, 5), "faster"),
        row("b", "4 tokens", 1.3, Interval(1.25, 1.2, 1.3, 5), "faster"),
        row("c", "8 tokens", 1.9, Interval(1.8, 0.9, 3.6, 5), "not told apart"),
    ]
    told = "batch 1: b, 4 tokens: decoding alone 1.3, end to end 1.25 [1.20, 1.30]."
    assert advice("batch 1", rows) == told
    assert advice("batch 8", rows[2:]) == "batch 8: decode plainly; nothing is told apart from it as faster."


def row(name: str, what: str, measured: float, interval: Interval, verdict: str) -> dict[str, Any]:
    words = {"decoding alone": str(measured), "end to end": str(interval), "verdict": verdict}
    return {"strategy": name, "best": what, "measured": measured, "intervals": [asdict(interval)] * 2, **words}


def test_at_most_four_units_are_timed_spread_over_all():
    for count, timed in {1: [0], 2: [0], 3: [0, 2], 7: [0, 2, 4, 6], 9: [0, 3, 6], 11: [0, 3, 6, 9]}.items():
        units = [Unit(number, "all", (number,)) for number in range(count)]
        assert [unit.index for unit in to_time(units)] == timed


def test_both_halves_have_every_kind_in_the_order_of_the_file():
    kinds = "abababaabcc" + "d" + "e"
    prompts = [NamedPrompt(str(number), kind, "") for number, kind in enumerate(kinds)]
    known, other = cells.halves(prompts)
    for kind in "abc":
        counts = [sum(kinds[int(one.name)] == kind for one in half) for half in (known, other)]
        assert abs(counts[0] - counts[1]) == kinds.count(kind) % 2
    assert abs(len(known) - len(other)) <= 1
    assert {one.name for one in (*known, *other)} == {one.name for one in prompts}
    for half in (known, other):
        assert [int(one.name) for one in half] == sorted(int(one.name) for one in half)
        assert {one.kind for one in half} == {"all"}, "batches are of one kind"


def test_the_last_table_counts_close_predictions_and_names_what_others_miss():
    row = {"best": "2 tokens", "verdict": "slower", "why not": None, "measured": 1.0, "intervals": []}
    rows = [
        {**row, "strategy": "near", "predicted": 1.09, "missing": []},
        {**row, "strategy": "far", "predicted": 1.5, "missing": ["tau 1.90 instead of 2.80", "so it is"]},
    ]
    told = report([{"kind": "batch 1, temperature 0", "rows": rows}], {})[-1]
    assert isinstance(told, Table)
    assert told.note.startswith("1 of 2 predictions are within 10% of what was measured of decoding alone")
    (far,) = (row for row in told.rows if row["strategy"] == "far")
    assert (far["predicted/measured"], far["missing part"]) == (1.5, "tau 1.90 instead of 2.80; so it is")


PAYS = Parts(tokens=2.0, rows=1.0, drafting=0.2, scoring=1.2, rest=0.1, plain=0.1)
DEAR = replace(PAYS, drafting=2.0)


@pytest.mark.parametrize(
    ("predicted", "measured", "bounds", "words"),
    [
        (PAYS, DEAR, (0.5, 0.7), "predicted to pay; measured, drafts of 2 take 2.00 of a pass a step; they would pay"),
        (
            PAYS,
            PAYS,
            (0.9, 1.4),
            "it pays decoding alone, 1.47 (n = 4), and end to end it is not told apart: 1.10 [0.90, 1.40]",
        ),
        (DEAR, DEAR, (0.5, 0.7), "as predicted"),
        (DEAR, PAYS, (1.2, 1.4), None),
        (PAYS, PAYS, (1.2, 1.4), None),
    ],
)
def test_what_is_not_faster_says_why_and_what_is_faster_does_not(predicted, measured, bounds, words):
    obstacle = "as predicted" if predicted == DEAR else None
    one = Advice("a", "2 tokens", predicted, "drafts of 2", obstacle, drafts.PromptLookup(2))
    interval = Interval(1.1, *bounds, num_units=5)
    told = cells.failure_reason(one, measured, Interval(1.47, None, None, 4), (interval, interval))
    assert told is None if words is None else str(told).startswith(words)


def test_one_token_is_no_tokens():
    assert [count_of(number, "token") for number in (0, 1, 2)] == ["0 tokens", "1 token", "2 tokens"]


def arguments(folder: Path, out: Path) -> list[str]:
    names = ("small_transformer", "tree")
    sizes = ["--longest", "2", "--batch-sizes", "1", "2", "--temperatures", "0", "0.7"]
    return [*common(folder, out), *sizes, "--strategies", *names, *all_own(folder, names)]


def test_the_command_line(checkpoints, tmp_path, capsys):
    assert main(arguments(checkpoints, tmp_path)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Advice:\n\n- batch 1, temperature 0: ")
    assert "\nBatch 2, temperature 0.7\n" in printed
    assert "law e" not in printed, "nobody held draws against their law"
    entries = read_json(the_folder(tmp_path) / "advice.json")["cells"]
    kinds = [f"batch {batch}, temperature {heat}" for batch in (1, 2) for heat in (0, 0.7)]
    assert [cell["kind"] for cell in entries] == kinds
    for cell in entries:
        assert [row["strategy"] for row in cell["rows"]] == ["small_transformer", "tree"]
        assert all((row["why not"] is None) == (row["verdict"] == "faster") for row in cell["rows"])
        name = "identical" if cell["kind"].endswith("temperature 0") else "checked"
        assert all(row[name] == "2/2" and row["predicted"] > 0 for row in cell["rows"])
        assert all(row["missing"] or abs(row["predicted"] / row["measured"] - 1) <= CLOSE for row in cell["rows"])
    assert printed.count("\nbatch 2, temperature 0  ") >= 2


def test_what_nobody_asked_for_is_left_out_with_the_reason(checkpoints, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cells, "CHAINS", ("prompt_lookup", "early_exit"))
    argv = [*common(checkpoints, tmp_path), "--batch-sizes", "1", "--temperatures", "0", "--longest", "2"]
    assert main([*argv, "--tree-model", str(checkpoints / "draft")]) == 0
    printed, told = capsys.readouterr()
    assert "left out: early_exit: give --early-exit-head none, " in told
    assert "\n- early_exit, left out: give --early-exit-head none, " in printed
    kept = read_json(the_folder(tmp_path) / "advice.json")
    assert [row["strategy"] for row in kept["cells"][0]["rows"]] == ["prompt_lookup", "tree"]
    assert [*kept["left out"]] == ["early_exit"]


def test_what_cannot_be_had_is_refused_before_anything_runs(checkpoints, tmp_path, monkeypatch):
    library = text_strategies.stdlib_folder()
    for path in text_strategies.training_files({"train_on": None})[:2]:  # n-grams of all take seconds to count
        copied = tmp_path / "lib" / path.relative_to(library)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copied)
    monkeypatch.setattr(text_strategies, "stdlib_folder", lambda: tmp_path / "lib")
    argv = [*common(checkpoints, tmp_path), "--batch-sizes", "1", "--strategies", "early_exit"]
    for asked in (argv, [*argv[:-2], "--early-exit-num-layers", "1"]):
        with pytest.raises(SystemExit, match="advise: early_exit: give --early-exit-head none, "):
            main(asked)
    words = "--num-prompts: 64 prompts fill a batch to calibrate on and one to measure, and 1 fit"
    with pytest.raises(SystemExit, match=words):
        main([*argv, "--batch-sizes", "32", "--num-prompts", "1"])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(["--top-p", "1.5"], "--top-p: SamplingParams: top_p=1.5"), (["--temperatures", "0", "-1"], "--temperatures:")],
)
def test_a_cell_that_cannot_be_sampled_is_refused_before_any_is_measured(wrong, words, checkpoints, tmp_path, capsys):
    names = ("small_transformer",)
    argv = [*common(checkpoints, tmp_path), "--batch-sizes", "1", "--strategies", *names, *all_own(checkpoints, names)]
    with pytest.raises(SystemExit):
        main([*argv, *wrong])
    assert f"argument {words} must lie in " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("lookahead", "no advice on lookahead: it has no draft length that could be chosen; measure it with `compare`"),
        ("merged", "no advice on merged: it joins the chains of two sources into a tree"),
        ("eagle3", "no advice on eagle3: it drafts with a head, and advice takes none"),
        ("lookup", "there is no strategy 'lookup': there are small_transformer, "),
    ],
)
def test_a_strategy_that_it_cannot_advise_on_is_refused_with_the_reason(name, reason, capsys):
    with pytest.raises(SystemExit):
        main(["--strategies", "tree", name])
    assert f"argument --strategies: {reason}" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--tree-shape", "--ngram-num-draft-tokens"])
def test_what_it_chooses_itself_is_no_option(option, capsys):
    with pytest.raises(SystemExit):
        main([option, "2"])
    assert f"unrecognized arguments: {option} 2" in capsys.readouterr().err


def test_what_a_policy_ends_has_no_speed_by_draft_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert {*cells.CHAINS} - {*cells.FIXED} == {"threshold"}
    with pytest.raises(SystemExit):
        crossover.parse(["--strategy", "threshold"])
    assert "there is no strategy with drafts of a fixed length 'threshold'" in capsys.readouterr().err
