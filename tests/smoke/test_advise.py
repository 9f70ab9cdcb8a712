"""Advice: its last words, and the command line."""

import json
from pathlib import Path

import pytest

from experiments.advise import cells
from experiments.advise.__main__ import advice, main, report
from experiments.advise.parts import CLOSE
from tests.smoke.test_experiments import checkpoints, common, own  # noqa: F401  (a fixture among them)


def test_the_advice_is_the_best_that_was_measured() -> None:
    rows = [
        {"strategy": "a", "best": "2 tokens", "measured": 1.3, "verdict": "faster"},
        {"strategy": "b", "best": "4 tokens", "measured": 1.1, "verdict": "faster"},
        {"strategy": "c", "best": "8 tokens", "measured": 1.9, "verdict": "not told apart"},
    ]
    assert advice("batch 1", rows) == "batch 1: a, 2 tokens: 1.30 times plain decoding."
    assert advice("batch 8", rows[2:]) == "batch 8: decode plainly; nothing is told apart from it as faster."


def test_the_last_table_counts_close_predictions_and_names_what_others_miss() -> None:
    row = {"best": "2 tokens", "verdict": "slower", "why not": None, "measured": 1.0, "intervals": []}
    rows = [
        {**row, "strategy": "near", "predicted": 1.09, "missing": []},
        {**row, "strategy": "far", "predicted": 1.5, "missing": ["tau 1.90 instead of 2.80", "so it is"]},
    ]
    printed = report([{"kind": "batch 1, temperature 0", "rows": rows}], {})
    assert "1 of 2 predictions are within 10% of what was measured" in printed
    (far,) = (line for line in printed.splitlines() if "far" in line and "tau" in line)
    assert [cell.strip() for cell in far.split("|")[-3:-1]] == ["1.5", "tau 1.90 instead of 2.80; so it is"]


def arguments(folder: Path, out: Path) -> list[str]:
    names = ("prompt_lookup", "small_transformer", "tree")
    chosen = [option for name in names for option in own(folder, name, f"{name.replace('_', '-')}-")]
    sizes = ["--longest", "2", "--batch-sizes", "1", "2", "--temperatures", "0", "0.7"]
    return [*common(folder, out), *sizes, "--strategies", *names, *chosen]


def test_the_command_line(checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert main(arguments(checkpoints, tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "### Batch 2, temperature 0.7" in printed
    (folder,) = tmp_path.iterdir()
    entries = json.loads((folder / "advice.json").read_text(encoding="utf-8"))["cells"]
    assert [cell["kind"] for cell in entries] == [
        "batch 1, temperature 0",
        "batch 1, temperature 0.7",
        "batch 2, temperature 0",
        "batch 2, temperature 0.7",
    ]
    for cell in entries:
        assert [row["strategy"] for row in cell["rows"]] == ["prompt_lookup", "small_transformer", "tree"]
        assert all(row["identical"] == "2/2" and row["predicted"] > 0 for row in cell["rows"])
        assert all(row["missing"] or abs(row["predicted"] / row["measured"] - 1) <= CLOSE for row in cell["rows"])
    assert printed.count("\n| batch 2, temperature 0 ") == 3


def test_what_nobody_asked_for_is_left_out_with_the_reason(
    checkpoints: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cells, "CHAINS", ("prompt_lookup", "early_exit"))
    argv = [*common(checkpoints, tmp_path), "--batch-sizes", "1", "--temperatures", "0", "--longest", "2"]
    assert main([*argv, "--tree-model", str(checkpoints / "draft")]) == 0
    printed, told = capsys.readouterr()
    assert "left out: early_exit: early_exit: give --early-exit-head none, " in told
    assert "\n- early_exit, left out: give --early-exit-head none, " in printed
    (folder,) = tmp_path.iterdir()
    kept = json.loads((folder / "advice.json").read_text(encoding="utf-8"))
    assert [row["strategy"] for row in kept["cells"][0]["rows"]] == ["prompt_lookup", "tree"]
    assert [*kept["left out"]] == ["early_exit"]


def test_what_cannot_be_had_is_refused_before_anything_runs(
    checkpoints: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    argv = [*common(checkpoints, tmp_path), "--batch-sizes", "1", "--strategies", "early_exit"]
    with pytest.raises(SystemExit, match="advise: early_exit: give --early-exit-head none, "):
        main(argv)
    with pytest.raises(SystemExit, match="advise: early_exit: give --early-exit-head none, "):
        main([*argv[:-2], "--early-exit-num-draft-tokens", "1"])
    with pytest.raises(
        SystemExit, match="--num-prompts: 64 prompts fill a batch to calibrate on and one to measure, and 1 fit"
    ):
        main([*argv, "--batch-sizes", "32", "--num-prompts", "1"])
