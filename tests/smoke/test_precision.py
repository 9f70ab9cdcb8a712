"""The study of precisions from its command line: its tables, its file, its refusals."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from experiments.bench.oracle import rounds
from experiments.inference_stack import study_frame
from experiments.inference_stack.study_frame import Results
from experiments.precision import __main__ as precision
from experiments.precision import precision_arms, precision_tables, with_torchao
from experiments.precision.precision_arms import ARMS, VIEWS, Arm
from oracles import Transformer
from oracles.quantisation import FORMATS
from oracles.quantisation.methods.calibration_text import calibration_ids
from tests.support.backends import needed_native
from tests.support.experiments import table_rows

pytestmark = pytest.mark.usefixtures("documents")

needed_native()

QUICK = ["--threads", "1", "--rounds", "2", "--warm-ups", "1", "--round-seconds", "0.001", "--num-prompts", "4"]
SIZES = ["--gate-prompts", "3", "--passages", "3", "--draft-prompts", "3", "--batches", "1", "2"]


CUT: dict[str, Tensor] = {}


def calibrated_on(model: Transformer) -> Tensor:
    """Return the ids that a checkpoint is calibrated on, cut once for each tokenizer."""
    tokenizer = model.tokenizer.to_str()
    if tokenizer not in CUT:
        CUT[tokenizer] = calibration_ids(model)
    return CUT[tokenizer]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_arms, "calibration_ids", calibrated_on)
    monkeypatch.setattr(rounds, "PAUSE", 0.0)
    monkeypatch.setattr(study_frame, "warn_of_contention", lambda: None)


def run(out: Path, *more: str) -> None:
    precision.main([*QUICK, *SIZES, "--out", str(out), *more])


def test_all_tables_are_printed_and_figures_are_kept(tmp_path, capsys):
    chosen = ["--arms", "float32", "bfloat16 weights", "float16", "int8, dequantised", "int8", "int4"]
    drafted = ["--views", "int8", "--lengths", "2", "--draft-subjects", "arithmetic", "--draft-batches", "1"]
    run(tmp_path, *chosen, *drafted)
    printed = capsys.readouterr().out
    texts = {row["arm"]: row for row in table_rows(printed, "As oracles: what they write")}
    assert list(texts) == [name for name in ARMS if name in chosen]
    for name in ("float32", "bfloat16 weights"):  # as the checkpoint stores them
        assert [texts[name][f"changed, batch {batch}"] for batch in (1, 2)] == ["0 of 3", "0 of 3"]
    assert texts["int8"]["as its reference"] == texts["int4"]["as its reference"] == "3 of 3"
    sizes = {name: float(row["MB read"]) for name, row in texts.items()}
    assert sizes["float32"] == pytest.approx(2 * sizes["bfloat16 weights"], rel=0.01)
    assert sizes["int4"] < sizes["int8"] < sizes["bfloat16 weights"] < sizes["int8, dequantised"]
    assert sizes["int8, dequantised"] == pytest.approx(9 * sizes["int8"], rel=0.01)
    bits = {name: float(row["bits per byte of code"]) for name, row in texts.items()}
    assert bits["float32"] == bits["bfloat16 weights"]
    assert bits["int8"] == bits["int8, dequantised"]
    assert abs(bits["int8"] - bits["float32"]) < abs(bits["int4"] - bits["float32"]) < 0.5
    assert [row["arm"] for row in table_rows(printed, "As oracles: speed at batch 2")] == list(texts)
    drafts = table_rows(printed, "As drafts of the float32 oracle: arithmetic")
    assert [row["view"] for row in drafts] == ["int8, 2 ahead"]
    assert float(drafts[0]["alpha"]) > 0.9
    kept = (tmp_path / "results.json").read_text(encoding="utf-8")
    run(tmp_path, *chosen, *drafted)  # nothing is measured again
    assert json.loads(kept)["measured"] == json.loads((tmp_path / "results.json").read_text("utf-8"))["measured"]


def test_an_arm_that_cannot_be_made_is_told_and_leaves_the_others(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(precision_arms.ARMS, "int8", replace(ARMS["int8"], method="no method"))
    run(tmp_path, "--arms", "float32", "int8", "--parts", "text", "bits", "time", "--batches", "2")
    printed = capsys.readouterr().out
    assert "batch 2, int8: KeyError: 'no method'" in printed
    assert [row["changed, batch 2"] for row in table_rows(printed, "As oracles: what they write")] == [
        "0 of 3",
        "failed",
    ]
    assert [row["arm"] for row in table_rows(printed, "As oracles: speed at batch 2")] == ["float32"]


def test_torchao_rounds_as_we_do_and_its_weights_are_counted(tmp_path, capsys):
    chosen = ["float32", "int8, dequantised", "int8, torchao", "int8 inputs, torchao"]
    run(tmp_path, "--arms", *chosen, "--parts", "text", "bits", "time")
    printed = capsys.readouterr().out
    texts = {row["arm"]: row for row in table_rows(printed, "As oracles: what they write")}
    assert list(texts) == chosen
    ours, theirs = texts["int8, dequantised"], texts["int8, torchao"]
    assert theirs["as its reference"] == "3 of 3"
    assert float(theirs["MB read"]) == pytest.approx(float(ours["MB read"]), rel=0.02)
    # Where inputs are rounded too, no float32 weights are written.
    assert float(texts[chosen[3]]["MB read"]) == pytest.approx(float(ours["MB read"]) / 9, rel=0.03)
    bits = [float(texts[name]["bits per byte of code"]) for name in chosen]
    assert bits[2] == pytest.approx(bits[1], abs=2e-3)
    assert len({bits[0], bits[2], bits[3]}) == 3  # neither arm is another under its name
    assert [row["arm"] for row in table_rows(printed, "As oracles: speed at batch 1")] == chosen


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
    assert {arm.weights for arm in ARMS.values()} >= set(FORMATS)
    assert all(ARMS[view].backend == precision_arms.NATIVE for view in VIEWS)
    assert ARMS["int8 inputs"].products == "int8, sums int32"
    assert Arm("bfloat16", precision_arms.EAGER, "bfloat16").products == "bfloat16"


def test_the_reference_column_tells_the_worst_batch_size(tmp_path):
    results = Results(tmp_path, {})
    found = {"prompts": 5, "same": 4, "exact": None, "bytes_read": 1e6, "load_seconds": 1.0}
    results.put("text", 1, {"int8": {**found, "as_reference": 5}})
    results.put("text", 8, {"int8": {**found, "as_reference": 3}})
    (row,) = precision_tables.text_rows(results, [1, 8], ["int8"])
    assert (row["as its reference"], row["changed, batch 8"], row["exact answers"]) == ("3 of 5", "1 of 5", None)
