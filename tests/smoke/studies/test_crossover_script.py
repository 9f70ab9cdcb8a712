"""Crossover by batch, from its command line: tables, a picture, and what is refused before anything runs."""

from pathlib import Path

import pytest

from experiments.studies.crossover.__main__ import main
from tests.support.runs.experiments import common, read_json, the_folder


def arguments(folder: Path, out: Path, *more: str) -> list[str]:
    argv = [*common(folder, out), "--small-transformer-model", str(folder / "draft"), "--draft-lengths", "2", "1"]
    argv[argv.index("--max-new-tokens") + 1] = "24"
    return [*argv, "--batch-sizes", "2", "1", *more]


def test_the_tables_have_every_batch_and_length(checkpoints, tmp_path, capsys):
    assert main(arguments(checkpoints, tmp_path, "--temperature", "0.8")) == 0
    printed, folder = capsys.readouterr().out, the_folder(tmp_path)
    assert {path.name for path in folder.iterdir()} == {"crossover.json", "crossover.png", "units.jsonl"}
    sizes = read_json(folder / "crossover.json")["sizes"]
    rows = [row for size in sizes for row in size["rows"]]
    assert [(row["batch"], row["k"]) for row in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all(row["predicted"] > 0 and row["v"] >= 1 and row["tau"] >= 1 for row in rows)
    assert all(row["measured/predicted"] == pytest.approx(row["decoding alone"] / row["predicted"]) for row in rows)
    for size in sizes:
        parts = size["parts"]
        for name in ("b", "c"):
            by_phase = [parts[f"{name} {phase}"] for phase in ("propose", "score", "rest")]
            assert parts[name] == pytest.approx(sum(by_phase))
    assert "- k = 1: " in printed
    assert "the residual" in printed


def test_too_few_prompts_are_refused_before_anything_runs(checkpoints, tmp_path):
    with pytest.raises(SystemExit, match="crossover: --num-prompts: 4 prompts fit the oracle, and the largest batch"):
        main([*arguments(checkpoints, tmp_path), "--batch-sizes", "8"])


def test_recorded_text_has_no_times():
    with pytest.raises(SystemExit, match="crossover: --oracle recorded:x: times are measured here"):
        main(["--oracle", "recorded:x"])


def test_a_length_beside_its_draft_lengths_is_no_option(capsys):
    with pytest.raises(SystemExit):
        main(["--small-transformer-num-draft-tokens", "3"])
    assert "unrecognized arguments: --small-transformer-num-draft-tokens 3" in capsys.readouterr().err
