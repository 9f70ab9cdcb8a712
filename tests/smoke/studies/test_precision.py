"""The study of precisions from its command line: its tables, its file, its refusals."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from experiments.harness import rounds
from experiments.studies.inference_stack import study_frame
from experiments.studies.precision import __main__ as precision
from experiments.studies.precision import precision_arms, with_torchao
from experiments.studies.precision.precision_arms import ARMS, VIEWS, PrecisionArm
from oracles.quantisation import FORMATS
from oracles.quantisation.methods import calibration_text
from tests.support.backends import needed_native
from tests.support.runs.experiments import table_rows

pytestmark = pytest.mark.usefixtures("documents")

needed_native()

QUICK = ["--threads", "1", "--rounds", "2", "--warm-ups", "1", "--round-seconds", "0.001", "--num-prompts", "4"]
SIZES = ["--gate-prompts", "2", "--passages", "1", "--draft-prompts", "2", "--batches", "1", "2"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrate on few ids of few files, which are cut in no time."""
    read = calibration_text.read_split
    monkeypatch.setattr(calibration_text, "read_split", lambda split, **given: read(split, **given)[:8])
    monkeypatch.setattr(precision_arms, "calibration_ids", partial(calibration_text.calibration_ids, num_tokens=2048))
    monkeypatch.setattr(rounds, "PAUSE", 0.0)
    monkeypatch.setattr(study_frame, "take_threads", lambda _: None)


def run(out: Path, *more: str) -> None:
    precision.main([*QUICK, *SIZES, "--out", str(out), *more])


def test_all_tables_are_printed_and_figures_are_kept(tmp_path, capsys):
    """Arms of torchao round as ours do, and their weights are counted."""
    chosen = ["--arms", "float32", "bfloat16 weights", "float16", "int8, dequantised", "int8", "int4"]
    chosen += ["int8, torchao", "int8 inputs, torchao"]
    drafted = ["--views", "int8", "--lengths", "2", "--draft-subjects", "arithmetic", "--draft-batches", "1"]
    run(tmp_path, *chosen, *drafted, "--parts", "text", "bits", "drafts")
    kept = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["measured"]
    capsys.readouterr()
    run(tmp_path, "--arms", "float32", "int8", *drafted, "--parts", "text", "bits", "drafts", "time", "--batches", "2")
    measured = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["measured"]
    assert measured == {**kept, "time, batch 2": measured["time, batch 2"]}  # nothing is measured again
    timed = table_rows(capsys.readouterr().out, "As oracles: speed at batch 2")
    assert [row["arm"] for row in timed] == ["float32", "int8"]
    run(tmp_path, *chosen, *drafted, "--parts", "text", "bits", "drafts")
    printed = capsys.readouterr().out
    texts = {row["arm"]: row for row in table_rows(printed, "As oracles: what they write")}
    assert list(texts) == [name for name in ARMS if name in chosen]
    for name in ("float32", "bfloat16 weights"):  # as the checkpoint stores them
        assert [texts[name][f"changed, batch {batch}"] for batch in (1, 2)] == ["0 of 2", "0 of 2"]
    assert {texts[name]["as its reference"] for name in ("int8", "int4", "int8, torchao")} == {"2 of 2"}
    sizes = {name: float(row["MB read"]) for name, row in texts.items()}
    assert sizes["float32"] == pytest.approx(2 * sizes["bfloat16 weights"], rel=0.01)
    assert sizes["int4"] < sizes["int8"] < sizes["bfloat16 weights"] < sizes["int8, dequantised"]
    assert sizes["int8, dequantised"] == pytest.approx(9 * sizes["int8"], rel=0.01)
    assert sizes["int8, torchao"] == pytest.approx(sizes["int8, dequantised"], rel=0.02)
    # Where inputs are rounded too, no float32 weights are written.
    assert sizes["int8 inputs, torchao"] == pytest.approx(sizes["int8, dequantised"] / 9, rel=0.03)
    bits = {name: float(row["bits per byte of code"]) for name, row in texts.items()}
    assert bits["float32"] == bits["bfloat16 weights"]
    assert bits["int8"] == bits["int8, dequantised"] == pytest.approx(bits["int8, torchao"], abs=2e-3)
    assert len({bits[name] for name in ("float32", "int8, torchao", "int8 inputs, torchao")}) == 3
    assert abs(bits["int8"] - bits["float32"]) < abs(bits["int4"] - bits["float32"]) < 0.5
    drafts = table_rows(printed, "As drafts of the float32 oracle: arithmetic")
    assert [row["view"] for row in drafts] == ["int8, 2 ahead"]
    assert float(drafts[0]["alpha"]) > 0.9


def test_an_arm_that_cannot_be_made_is_told_and_leaves_the_others(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(precision_arms.ARMS, "int8", replace(ARMS["int8"], method="no method"))
    run(tmp_path, "--arms", "float32", "int8", "--parts", "text", "bits", "time", "--batches", "2")
    printed = capsys.readouterr().out
    assert "batch 2, int8: KeyError: 'no method'" in printed
    assert [row["changed, batch 2"] for row in table_rows(printed, "As oracles: what they write")] == [
        "0 of 2",
        "failed",
    ]
    assert [row["arm"] for row in table_rows(printed, "As oracles: speed at batch 2")] == ["float32"]


def test_without_torchao_its_arms_are_named_as_not_run_or_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(with_torchao, "is_installed", lambda: False)
    default = precision_arms.parse([], None)
    assert not [name for name in default.arms if "torchao" in name]
    line = "int8, torchao: not run (torchao is not installed: pip install 'exactspec[torchao]')."
    assert line in default.not_run
    monkeypatch.setattr(precision_arms, "ARMS", {name: ARMS[name] for name in ("float32", "int8, torchao")})
    run(tmp_path / "all", "--parts", "text", "--batches", "1")
    assert line in capsys.readouterr().out
    run(tmp_path, "--arms", "float32", "--parts", "text", "--batches", "1")
    assert "not run" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"precision: --arms: int8, torchao: torchao is not installed: pip install"):
        run(tmp_path, "--arms", "float32", "int8, torchao")
    with pytest.raises(ImportError, match="not installed"):
        ARMS["int8, torchao"].model("arithmetic")


@pytest.mark.parametrize(("argument", "unknown"), [("--arms", "int3"), ("--views", "bfloat16")])
def test_unknown_arms_are_refused(argument, unknown, tmp_path):
    with pytest.raises(SystemExit, match=f"precision: {argument}: {unknown} not among"):
        run(tmp_path, argument, unknown)


def test_every_format_is_measured_and_what_drafts_is_native():
    # GGUF's four bits are for drafts that learned to be rounded so.
    assert {arm.weights for arm in ARMS.values()} >= FORMATS.keys() - {"q4_0-int8"}
    assert all(ARMS[view].backend == precision_arms.NATIVE for view in VIEWS)
    assert ARMS["int8 inputs"].products == "int8, sums int32"
    assert PrecisionArm("bfloat16", precision_arms.EAGER, "bfloat16").products == "bfloat16"
