"""The demo: as many prompts as fit, and two sentences."""

import shlex
import sys
from pathlib import Path

import pytest

from experiments import demo
from experiments.harness.journal import COMMAND
from experiments.harness.running import COMPARE, plan_of, script
from tests.support.runs.experiments import TEXT, common, the_folder, write_rows


def arguments(folder: Path, out: Path) -> list[str]:
    return [*common(folder, out), "--strategies", "prompt_lookup", "lookahead"]


@pytest.mark.parametrize(("budget", "fewest", "expected"), [(0.0, 1, 1), (0.0, 3, 3), (1e9, 1, 40)])
def test_prompts_follow_the_budget(budget, fewest, expected, checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "FEWEST", fewest)
    assert demo.fitting(plan_of(COMPARE, arguments(checkpoints, tmp_path)), budget) == expected


def test_the_demo_concludes_in_two_sentences(checkpoints, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "FEWEST", 2)
    monkeypatch.setattr(demo, "BUDGET", 0.0)
    assert demo.main(arguments(checkpoints, tmp_path)) == 0
    printed = " ".join(capsys.readouterr().out.split())
    said = "6 of 6 outputs, of 3 arms, are plain decoding's, token for token."
    assert said in printed
    assert printed.index(said) < printed.index("Speed Ratios"), "the conclusion comes first"
    assert "No arm is told apart" in printed or "times as fast as plain decoding." in printed
    (page,) = tmp_path.glob("*/page.html")
    assert f"Page: {page}" in printed


def test_a_demo_that_did_not_end_goes_on_with_as_many_prompts(checkpoints, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "FEWEST", 2)
    monkeypatch.setattr(demo, "BUDGET", 0.0)
    rows = [{"id": name, "prompt": text} for name, text in (("short", TEXT), ("too long", TEXT * 40))]
    prompts = write_rows(tmp_path / "prompts.jsonl", [*rows, {"id": "more", "prompt": TEXT}])
    argv = [*arguments(checkpoints, tmp_path / "out"), "--prompts", str(prompts), "--num-prompts", "3", "--fresh"]
    assert demo.main(argv) == 1
    words = shlex.split((the_folder(tmp_path / "out") / COMMAND).read_text(encoding="utf-8"))
    assert words[:3] == ["python", "-m", "experiments.compare"]
    assert script(COMPARE, "", words[3:]) == 1
    assert "resumed: 1 of 2 units stand in " in capsys.readouterr().err


def test_a_run_without_a_page_is_not_excused(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        demo.page_of([tmp_path / "none"])


def test_the_demo_stands_without_the_charting_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert demo.page_of([]) == "No page: the page's charts need the package plotly: pip install 'exactspec[report]'"
