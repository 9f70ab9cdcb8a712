"""Advice: predictions that follow from records, the part that is in the way, and the command line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import drafts
from experiments.advise.__main__ import advice, main
from experiments.advise.predicting import Costs, Steps, best, obstacle, predict
from oracles import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from specdec.theory import WidthCurve, expected_tokens, optimal_gamma, walltime_improvement
from tests.smoke.test_experiments import checkpoints, common, own  # noqa: F401  (a fixture among them)

ALPHA, LONGEST = 0.8, 8
FREE = Costs(WidthCurve((1,), (1.0,)), draft=0.05, other=0.0, plain=0.0)


def steps_of(batch_size: int, rows: int = 8, new: int = 400, alpha: float = ALPHA) -> Steps:
    """Return the steps of drafts that are accepted with one rate everywhere."""
    target, model = TabularLM.pair(8, 2, alpha, seed=3)
    decoder = SpeculativeDecoder(target, drafts.SmallTransformer(model, LONGEST))
    sampling, prompts = SamplingParams(temperature=1.0), [[i % 8, i % 3] for i in range(rows)]
    made = [
        decoder.generate(prompts[first : first + batch_size], new, sampling, seed=first).records.columns()
        for first in range(0, rows, batch_size)
    ]
    return Steps.of(made)


def test_short_drafts_do_what_theory_says_of_them() -> None:
    steps = steps_of(1, rows=16)
    for length in range(1, LONGEST + 1):
        assert steps.tokens(length) == pytest.approx(expected_tokens(ALPHA, length), rel=0.05)
        assert steps.nodes(length) == pytest.approx(1 + length, rel=0.02)
        found = predict(steps, FREE, length)
        assert found.speedup == pytest.approx(walltime_improvement(ALPHA, length, FREE.draft), rel=0.05)
        assert found.rows == 1
    assert abs(best(steps, FREE, range(1, LONGEST + 1)).length - min(optimal_gamma(ALPHA, FREE.draft), LONGEST)) <= 1


def test_rows_that_end_early_are_foreseen() -> None:
    steps = steps_of(8, new=60)
    lengths = np.bincount(steps.request)
    assert steps.rows(LONGEST) == pytest.approx(lengths.sum() / lengths.max(), rel=0.05)
    assert steps.rows(None) == 8
    assert steps.rows(LONGEST) < steps.rows(2) < 8


def test_the_obstacle_is_the_part_that_costs_too_much() -> None:
    steps, lengths = steps_of(1, rows=4), range(1, LONGEST + 1)
    assert obstacle(steps, FREE, lengths) is None
    why = obstacle(steps, replace(FREE, draft=2.0), lengths)
    assert why is not None
    limit = float(why.rsplit(" ", 1)[1])
    assert obstacle(steps, replace(FREE, draft=limit - 0.02), lengths) is None
    assert obstacle(steps, replace(FREE, draft=limit + 0.02), lengths) is not None
    assert "beside drafting and scoring" in str(obstacle(steps, replace(FREE, other=9.0), lengths))
    steep = WidthCurve.linear(3.0)
    assert "costs" in str(obstacle(steps, replace(FREE, nodes=steep), lengths))
    assert "plain ones for" in str(obstacle(steps, replace(FREE, nodes=steep), lengths))
    assert "too few stand" in str(obstacle(steps_of(1, rows=2, new=100, alpha=0.01), FREE, lengths))


def test_the_advice_is_the_best_that_was_measured() -> None:
    rows = [
        {"strategy": "a", "best": "2 tokens", "measured": 1.3, "verdict": "faster"},
        {"strategy": "b", "best": "4 tokens", "measured": 1.1, "verdict": "faster"},
        {"strategy": "c", "best": "8 tokens", "measured": 1.9, "verdict": "not told apart"},
    ]
    assert advice("batch 1", rows) == "batch 1: a, 2 tokens: 1.30 times plain decoding."
    assert advice("batch 8", rows[2:]) == "batch 8: decode plainly; nothing is told apart from it as faster."


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
    cells = json.loads((folder / "advice.json").read_text(encoding="utf-8"))["cells"]
    assert [cell["kind"] for cell in cells] == [
        "batch 1, temperature 0",
        "batch 1, temperature 0.7",
        "batch 2, temperature 0",
        "batch 2, temperature 0.7",
    ]
    for cell in cells:
        assert [row["strategy"] for row in cell["rows"]] == ["prompt_lookup", "small_transformer", "tree"]
        assert all(row["identical"] == "2/2" and row["predicted"] > 0 for row in cell["rows"])


def test_what_cannot_be_had_is_refused_before_anything_runs(
    checkpoints: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    argv = [*common(checkpoints, tmp_path), "--batch-sizes", "1", "--strategies", "early_exit"]
    with pytest.raises(SystemExit, match="advise: early_exit: "):
        main(argv)
    with pytest.raises(
        SystemExit, match="--num-prompts: 64 prompts fill a batch to calibrate on and one to measure, and 1 fit"
    ):
        main([*argv, "--batch-sizes", "32", "--num-prompts", "1"])
