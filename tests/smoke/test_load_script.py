"""Loads from the command line: all arms at all rates, the same work, a run that goes on, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from experiments.load import measuring_loads
from experiments.load.__main__ import main
from experiments.load.load_tables import describe_outputs, differing, problems_of_work
from experiments.load.serving import Load, LoadRun, ServedRequest, Window
from tests.support.runs.experiments import common, read_json, the_folder

ARMS = ["prompt_lookup", "small_transformer:2", "small_transformer:3/4"]
LABELS = ["plain", "prompt_lookup", "small_transformer 2", "small_transformer 3, budget 4"]


def arguments(folder: Path, out: Path, *more: str) -> list[str]:
    argv = [*common(folder, out), "--small-transformer-model", str(folder / "draft"), "--batch-size", "2"]
    return [*argv, "--arms", *ARMS, "--seconds", "0.15", *more]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--loads", "0.5", "1.5"], "outputs, of 3 arms, are plain decoding's, token for token."),
        (["--rates", "30", "--temperature", "0.8"], "outputs, of 3 arms, are as long as plain decoding's."),
        (["--rates", "30", "--temperature", "0.8", "--rule", "coupled"], "are plain decoding's, token for token."),
    ],
    ids=["greedy", "draws", "coupled"],
)
def test_every_arm_serves_every_rate(more, told, checkpoints, tmp_path, capsys):
    assert main(arguments(checkpoints, tmp_path, *more, "--goodput", "e2el:60000")) == 0
    printed, folder = " ".join(capsys.readouterr().out.split()), the_folder(tmp_path)
    assert {path.name for path in folder.iterdir()} == {"load.json", "load.png", "units.jsonl"}
    loads = read_json(folder / "load.json")["loads"]
    num_rates = len(more) - 1 if more[0] == "--loads" else 1
    assert [load["arm"] for load in loads] == LABELS * num_rates
    for first in range(0, len(loads), len(LABELS)):
        own = loads[first : first + len(LABELS)]
        assert len({load["rate"] for load in own}) == 1
        arrivals = [[request["arrival"] for request in load["requests"]] for load in own]
        assert all(times == arrivals[0] for times in arrivals)
        assert all(len(request["tokens"]) == sum(request["counts"]) for load in own for request in load["requests"])
    assert told in printed
    assert "Limit of a good request: E2EL 60000 ms." in printed
    assert "With all 2 rows plain decoding serves" in printed
    for title in ("Latency by request rate", "Throughput and goodput", "beside the prediction", "an arm holds"):
        assert title in printed


def test_requests_arrive_as_in_a_file(checkpoints, tmp_path):
    (tmp_path / "times").write_text("1\n1.02\n1.04\n1.2\n", encoding="utf-8")
    out = tmp_path / "out"
    assert main([*arguments(checkpoints, out), "--arrivals", str(tmp_path / "times"), "--warm-up", "0"]) == 0
    loads = read_json(the_folder(out) / "load.json")["loads"]
    assert [load["rate"] for load in loads] == pytest.approx([15.0] * len(LABELS))
    for load in loads:
        assert [request["arrival"] for request in load["requests"]] == pytest.approx([0.0, 0.02, 0.04, 0.2])


def test_a_run_that_failed_goes_on_with_what_is_missing(checkpoints, tmp_path, capsys, monkeypatch):
    argv, real = arguments(checkpoints, tmp_path, "--rates", "20", "40"), measuring_loads.Loads._serve
    ran: list[str] = []

    def serve(self: Any, arm: str, times: Any) -> LoadRun:
        ran.append(arm)
        if broken and arm == "prompt_lookup":
            raise RuntimeError("no lookup today")
        return real(self, arm, times)

    monkeypatch.setattr(measuring_loads.Loads, "_serve", serve)
    broken = True
    assert main(argv) == 1
    assert "prompt_lookup at 20 requests/s: RuntimeError: no lookup today" in capsys.readouterr().err
    assert len(ran) == 1 + 2 * len(LABELS)
    ran.clear()
    broken = False
    assert main([*argv, "--goodput", "e2el:1"]) == 0  # the limit is no part of what is measured
    assert ran == ["prompt_lookup"] * 2


def test_a_run_without_a_capacity_ends_there(checkpoints, tmp_path, capsys, monkeypatch):
    monkeypatch.delattr(measuring_loads, "pass_seconds")
    assert main(arguments(checkpoints, tmp_path)) == 1
    assert "capacity: NameError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--rates", "1e-9"], "no request of 1e-09 a second arrives in the"),
        (["--loads", "1e-9"], "no request of .* a second arrives in the"),
        (["--max-new-tokens", "1"], "--max-new-tokens: one token has no time per token"),
        (["--arms", "magic", "small_transformer"], "--arms magic: there is no strategy 'magic'"),
        (["--arms", "small_transformer", "small_transformer"], "--arms: small_transformer stands there twice"),
        (["--arrivals", "absent"], "--arrivals absent: cannot be read"),
        (["--arrivals", "absent", "--loads", "1"], "--loads: --arrivals says when requests arrive"),
        (["--oracle", "recorded:x"], "--oracle recorded:x: times are measured here"),
    ],
)
def test_what_cannot_be_measured_is_refused(more, told, checkpoints, tmp_path):
    with pytest.raises(SystemExit, match=f"^load: {told}"):
        main(arguments(checkpoints, tmp_path, *more))


def outputs(arm: str, claim: str, *lengths: int, first: int = 5) -> Load:
    requests = [ServedRequest(0.0, 0.0, (1.0,), (n,), (first,) * n) for n in lengths]
    return Load(1.0, arm, LoadRun(tuple(requests), (), claim), Window(0.0, 1.0))


def test_other_work_is_told_and_fails_where_it_was_to_be_the_same():
    loads = [
        outputs("plain", "exact", 2, 3, 4),
        outputs("same", "exact", 2, 3, 4),
        outputs("other", "exact", 2, 3, 4, first=6),
        outputs("close", "exact up to numerics", 2, 3, 5),
    ]
    assert differing(loads, repeats_plain=True) == {"plain": 0, "same": 0, "other": 3, "close": 1}
    assert differing(loads, repeats_plain=False) == {"plain": 0, "same": 0, "other": 0, "close": 1}
    assert describe_outputs(loads, True) == (
        "5 of 9 outputs, of 3 arms, are plain decoding's, token for token (the others: other 3, close 1)."
    )
    assert describe_outputs(loads[:3], False) == "6 of 6 outputs, of 2 arms, are as long as plain decoding's."
    assert problems_of_work(loads, True) == ["other: outputs that are not plain decoding's: 3"]
    assert problems_of_work(loads, False) == ["close: outputs that are not as long as plain decoding's: 1"]
