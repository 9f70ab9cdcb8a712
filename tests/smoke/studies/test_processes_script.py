"""The command that measures one model on several processes, on a tiny one."""

from pathlib import Path
from typing import Any

import pytest
from torch.multiprocessing.spawn import start_processes

from experiments.studies import processes
from tests.support.runs.experiments import table_rows


def test_it_prints_a_row_for_every_number_of_processes_way_of_sums_and_arm(
    checkpoints: Path, documents: None, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--oracle", str(checkpoints / "target"), "--prompts", str(checkpoints / "prompts.jsonl")]
    assert processes.main([*argv, "--counts", "1", "--max-new-tokens", "4"]) == 0
    rows = table_rows(capsys.readouterr().out, "One model on several processes")
    assert [(row["sums"], row["arm"]) for row in rows] == [
        (sums, arm) for sums in ("blocks", "reduced") for arm in ("plain", "prompt_lookup", "prompt_lookup, T = 0.8")
    ]
    assert {(row["processes"], row["kB a token"], row["formula"]) for row in rows} == {("1", "0.0", "0.0")}
    assert {(row["sums"], row["claim"]) for row in rows} == {("blocks", "exact"), ("reduced", "exact up to numerics")}


def test_it_fails_if_something_is_not_as_it_must_be(
    checkpoints: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"processes": 1, "sums": "blocks", "arm": "plain", "seconds": 0.1, "tokens": [[1]], "steps": [3, 4]}
    row |= {"prompts": [0, 0], "weights": 9, "bits": "a", "claim": "exact"}
    monkeypatch.setattr(processes, "measure", lambda count, options, texts: [row])
    assert processes.main(["--prompts", str(checkpoints / "prompts.jsonl"), "--counts", "1"]) == 1
    assert "1 processes, blocks, plain: 3 bytes were sent, the formula says 4" in capsys.readouterr().err


def test_what_a_process_is_refused_ends_the_command_and_ctrl_c_leaves_none_behind(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["--oracle", str(checkpoints / "target"), "--prompts", str(checkpoints / "prompts.jsonl"), "--counts", "3"]
    with monkeypatch.context() as patch:
        patch.setattr(processes, "measure", None)  # not even the first number is measured
        with pytest.raises(SystemExit, match=r"^processes: 3 processes cannot share 2 key heads"):
            processes.main([*argv[:-1], "1", "3"])
        with pytest.raises(SystemExit, match=r"^processes: --counts 8: each sum is of 4 blocks"):
            processes.main([*argv[:-1], "1", "8"])
        patch.undo()
        patch.setattr(processes, "check_counts", lambda options: None)
        with pytest.raises(SystemExit, match="processes: 3 processes: ValueError: 3 processes cannot share 2 key"):
            processes.main(argv)

    def press(*given: Any, **more: Any) -> None:
        started.append(start_processes(*given, **more, join=False))  # type: ignore[no-untyped-call]
        raise KeyboardInterrupt

    started: list[Any] = []
    monkeypatch.setattr(processes, "start_processes", press)
    with pytest.raises(KeyboardInterrupt):
        processes.main([*argv[:-1], "1"])
    for process in started[0].processes:
        assert process.daemon, "the end of this process is its end"
        process.kill()
