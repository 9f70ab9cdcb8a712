"""The scripts on records: replays beside real runs, and what records cost."""

import pytest

from experiments import bench_records, replay


def test_every_replay_takes_the_steps_of_its_run(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--num-prompts", "2", "--max-new-tokens", "8", "--longest", "3"]
    assert replay.main([*sizes, "--oracle", "code-draft", "--model", "code-draft-tiny"]) == 0
    printed = capsys.readouterr().out
    assert "| yes" in printed
    assert "| no" not in printed


def test_without_coupling_runs_stand_beside_what_their_outputs_let_expect(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--num-prompts", "2", "--max-new-tokens", "8", "--longest", "3", "--temperature", "0.8"]
    argv = [*sizes, "--rule", "standard", "--oracle", "code-draft", "--model", "code-draft-tiny"]
    assert replay.main(argv) == 0
    printed = capsys.readouterr().out
    assert printed.count("| prompt_lookup ") == 5
    assert printed.count("| small_transformer ") == 2, "fixed lengths alone have expectations"
    assert "| yes" not in printed


def test_an_oracle_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SystemExit, match="replay: 'nowhere' is neither"):
        replay.main(["--oracle", "nowhere"])


def test_the_cost_of_records_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rounds", "1", "--num-prompts", "2", "--max-new-tokens", "4", "--threads", "1"]
    bench_records.main([*sizes, "--batch-sizes", "2"])
    printed = capsys.readouterr().out
    assert "node records, us/step" in printed
    assert printed.count("small_transformer") == len(bench_records.SAMPLINGS)
