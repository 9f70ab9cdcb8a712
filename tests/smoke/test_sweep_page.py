"""The page of a sweep: its folder stands for its units, and axes of few values are series of one chart."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.report.__main__ import main as report
from experiments.report.across import FEW, _axes
from experiments.sweep.__main__ import main as sweep
from experiments.sweep.sweep_results import runs_of
from experiments.sweep.working import DONE
from specdec.system.whole_file import write_whole
from tests.support.runs.experiments import GRID, a_file
from tests.support.runs.report_pages import altered, read

AXES = "num-draft-tokens = [1, 2]\ntemperature = [0, 0.8]\n"


@pytest.fixture(scope="module")
def swept(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a sweep of two draft lengths and two temperatures."""
    folder = tmp_path_factory.mktemp("sweep")
    text = GRID.partition("[grid]")[0] + f"[grid]\n{AXES}"
    assert sweep([str(a_file(folder, checkpoints, text=text)), "--out", str(folder / "out"), "--threads", "1"]) == 0
    return folder / "out"


def drawn(data: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Return axis -> measured series -> values across, of the pictures across the runs."""
    return {
        one["layout"]["xaxis"]["title"]["text"]: {
            trace["name"]: trace["x"] for trace in one["data"] if trace["mode"] != "lines"
        }
        for one in data["across"]["figures"]
    }


def test_a_sweep_has_one_page_with_axes_as_series(swept, capsys):
    assert report([str(swept)]) == 0
    assert f"Written: {swept / 'page.html'}" in capsys.readouterr().out
    found = read([swept], swept / "page.html")
    assert len(found.data) == 1 + 4
    lengths = drawn(found.data)["draft length of prompt_lookup, tokens"]
    assert lengths == {"temperature 0.0": [1, 2], "temperature 0.8": [1, 2]}
    by_temperature = drawn(found.data)["temperature"]
    assert by_temperature == {f"num draft tokens {length}": [0, 0.8] for length in (1, 2)}
    assert "0003: num-draft-tokens 2, temperature 0.8" in found.seen
    assert "In none of these pictures" not in found.seen


def test_units_that_did_not_end_well_are_named_and_left_out(swept, tmp_path, capsys):
    undone, failed = swept / "0000" / DONE, swept / "0002" / DONE
    kept = {path: path.read_text(encoding="utf-8") for path in (undone, failed)}
    try:
        undone.unlink()
        write_whole(failed, json.dumps(json.loads(kept[failed]) | {"error": "Traceback\nRuntimeError: no luck"}))
        assert report([str(swept), "--out", str(tmp_path / "page.html")]) == 0
        told = capsys.readouterr().err
        assert "left out: 0000 (num-draft-tokens 1, temperature 0): not done yet" in told
        assert "left out: 0002 (num-draft-tokens 2, temperature 0): failed, RuntimeError: no luck" in told
    finally:
        for path, text in kept.items():
            path.write_text(text, encoding="utf-8")


def test_a_sweep_of_which_nothing_ended_well_is_refused(swept, tmp_path):
    (tmp_path / "grid.toml").write_text((swept / "grid.toml").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(SystemExit, match="no unit of this sweep has ended well; run its command again"):
        report([str(tmp_path)])


@pytest.mark.parametrize(("count", "pictures"), [(FEW, 1), (FEW + 1, FEW + 1)])
def test_an_axis_of_many_values_has_a_chart_a_value(count, pictures, swept, tmp_path):
    short, _, longer, *_ = runs_of(swept)[0]
    folders = [
        altered(folder, tmp_path / f"{folder.parent.name}-{tokens}", {}, max_new_tokens=tokens)
        for tokens in range(6, 6 + count)
        for folder in (short, longer)
    ]
    found = read(folders, tmp_path / "page.html").data["across"]["figures"]
    (by_length,) = {one["layout"]["xaxis"]["title"]["text"] for one in found}
    assert by_length == "draft length of prompt_lookup, tokens"
    assert len(found) == pictures


def test_what_is_yes_or_no_lies_across_no_picture():
    runs: list[Any] = [SimpleNamespace(arguments={"ngram.sampled": one, "ngram.order": 3}) for one in (True, False)]
    assert set(_axes(runs)) == {"batch_size", "temperature", "ngram.order"}
