"""The experiment on devices, tried on the CPU with tiny shapes: its tables, what it keeps, what it refuses."""

import json
import sys

import pytest

import experiments.harness.arguments
from experiments.harness import rounds
from experiments.studies.device import __main__ as device
from experiments.studies.device.device_models import PARTS
from tests.support.runs.experiments import read_json

pytestmark = pytest.mark.usefixtures("documents")

CPU = ["--device", "cpu", "--shapes", "tiny", "--dtype", "float32", "--oracle", "code-draft-tiny"]
SMALL = ["--batch-sizes", "1", "3", "--widths", "4", "--contexts", "32", "--num-prompts", "2", "--new-tokens", "4"]
ONCE = ["--rounds", "1", "--repeats", "1"]
QUICK = [*ONCE, "--draft", "code-draft-tiny", "--identity-tokens", "5", "--identity-prompts", "2"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAUSE", 0.0)
    monkeypatch.setitem(sys.modules, "datasets", None)  # machines with a GPU may lack it


def test_the_parts_are_printed_and_kept(tmp_path, capsys, monkeypatch):
    # Bits are compared below; the check of every bucket when an oracle is made has tests of its own.
    monkeypatch.setattr("oracles.graphed.graphed_transformer.differing_bucket", lambda *_: None)
    asked = [*CPU, *SMALL, *QUICK, "--out", str(tmp_path)]
    assert device.main(asked) == 0
    printed = capsys.readouterr().out
    assert [line[4:] for line in printed.splitlines() if line.startswith("### ")] == list(PARTS)
    found = {part: read_json(tmp_path / f"{part}.json")["rows"] for part in PARTS}
    for row in found["agreement"]:
        assert row["texts that differ, plain"] == row["texts that differ, prompt_lookup"] == 0
        assert row["largest difference, chain"] < 1e-4 > row["largest difference, tree"]
    assert [row["backend"] for row in found["agreement"]] == ["eager", "graphed", "bitwise"]
    cases = [(row["batch"], row["width"], row["tree"]) for row in found["attention"]]
    assert cases == [(batch, width, tree) for batch in (1, 3) for width in (1, 4) for tree in (False, True)]
    assert all(row["us, masked"] > 0 < row["GB/s, masked"] for row in found["attention"])
    assert all(row["bits kept, chunked"] for row in found["attention"])
    passes = [(row["batch"], row["width"], row["t(W)/t(1), bitwise"] > 0) for row in found["passes"]]
    assert passes == [(1, 1, True), (1, 4, True), (3, 1, True), (3, 4, True)]
    assert len(found["decoding"]) == 12
    assert {row["share of passes in graphs"] for row in found["decoding"]} == {0}
    # Two prompts are repeated for three rows.
    rows = {(row["batch"], row["rows in flight"]) for row in found["decoding"] if row["arm"].endswith("plain")}
    assert rows == {(1, 1), (3, 3)}
    told = {mode: [row for row in found["identity"] if row["mode"] == mode] for mode in ("graphed", "bitwise")}
    assert [(row["texts that differ"], row["exactness"]) for row in told["bitwise"]] == [(0, "exact")] * 4
    assert [row["exactness"] for row in told["graphed"]] == ["exact up to numerics"] * 4
    assert {row["tokens"] for row in found["identity"]} == {15}
    assert {row["rows in flight"] for row in found["identity"] if row["arm"] == "plain, batch 3"} == {3}
    assert all(1 < row["rows in flight"] <= 3 for row in found["identity"])

    # What is there is printed again; with another argument, or afresh, it is measured.
    measured = []
    monkeypatch.setattr(device, "MEASURE", dict.fromkeys(PARTS, lambda options: measured.append(1) or [{"new": 1}]))
    device.main(asked)
    assert capsys.readouterr().out == printed
    assert not measured
    device.main([*asked, "--parts", "passes", "--fresh"])
    device.main([*asked, "--parts", "decoding", "--new-tokens", "7"])
    assert len(measured) == 2
    # A text that differs where none may is a failure.
    kept = read_json(tmp_path / "identity.json")
    for row in kept["rows"]:
        row["texts that differ"] = 1
    (tmp_path / "identity.json").write_text(json.dumps(kept), encoding="utf-8")
    assert device.main([*asked, "--parts", "identity"]) == 1
    assert "FAILED: texts that are to be equal differ: bitwise, plain, batch 3; " in capsys.readouterr().err


def test_figures_of_other_code_are_measured_again(tmp_path, capsys, monkeypatch, request):
    """Two states of a changed checkout have one commit, and an installed copy has none."""
    source, measured = tmp_path / "experiments" / "device" / "passes.py", list[object]()
    source.parent.mkdir(parents=True)
    source.write_bytes(b"1")
    place = tmp_path / "experiments" / "harness" / "arguments.py"
    monkeypatch.setattr(experiments.harness.arguments, "__file__", str(place))
    monkeypatch.setattr(device, "MEASURE", {"passes": lambda options: measured.append(1) or [{"new": len(measured)}]})
    request.addfinalizer(experiments.harness.arguments._code.cache_clear)
    for content in (b"1", b"1", b"2"):
        source.write_bytes(content)
        experiments.harness.arguments._code.cache_clear()  # as a new process has it
        device.main([*CPU, "--parts", "passes", "--out", str(tmp_path / "out")])
    assert len(measured) == 2
    monkeypatch.setattr(device, "version_of", lambda package: f"another {package}")
    device.main([*CPU, "--parts", "passes", "--out", str(tmp_path / "out")])
    assert len(measured) == 3
    (tmp_path / "out" / "passes.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"^device: .*passes\.json is damaged: it lacks 'of', 'rows'; delete it"):
        device.main([*CPU, "--parts", "passes", "--out", str(tmp_path / "out")])


def test_a_cache_that_does_not_fit_is_a_row_without_times(tmp_path, capsys, monkeypatch):
    def refuse(*_: object) -> None:
        raise ValueError("a cache of 1 rows takes too much")

    monkeypatch.setattr("experiments.studies.device.device_passes.random_cache", refuse)
    device.main([*CPU, *SMALL, *QUICK, "--parts", "passes", "--batch-sizes", "1", "--out", str(tmp_path)])
    told = capsys.readouterr()
    assert "tiny, batch 1 after 32: a cache of 1 rows takes too much" in told.err
    rows = read_json(tmp_path / "passes.json")["rows"]
    assert [(row["width"], row["ms, eager"], row["GB/s, graphed"]) for row in rows] == [(w, None, None) for w in (1, 4)]


def test_a_device_that_does_not_keep_bits_has_no_bitwise_figures(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("oracles.graphed.graphed_transformer.differing_bucket", lambda *_: "a chain of 3 nodes")
    one = [*CPU, *SMALL, *QUICK, "--batch-sizes", "1"]
    device.main([*one, "--parts", "agreement", "passes", "identity", "--out", str(tmp_path)])
    assert capsys.readouterr().err.count("bitwise: bitwise is True, and on cpu in torch.float32 bits depend on") == 3
    for part in ("agreement", "passes", "identity"):
        rows = json.dumps(read_json(tmp_path / f"{part}.json")["rows"])
        assert "graphed" in rows
        assert "bitwise" not in rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "70b"], "invalid choice: '70b'"),
        (["--widths", "0"], "must be at least 1, got 0"),
        (["--device", "cuda"], "has no CUDA; give --device cpu"),
        (["--device", "gpu0"], "--device: device is 'gpu0'; give one as torch names them"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        device.main(arguments)
    assert message in capsys.readouterr().err
