"""The scripts on records: replays beside real runs, and what records cost."""

import pytest

from experiments import replay
from experiments.bench import records as bench_records

pytestmark = pytest.mark.usefixtures("documents")


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
    assert printed.count("| small_transformer ") == 5, "all but the one that follows the share that stood"
    assert "tracked" not in printed.split("| small_transformer ", 1)[1]
    assert "| yes" not in printed


@pytest.mark.parametrize("rule", ["coupled", "standard"])
def test_trees_are_replayed_beside_their_runs(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--num-prompts", "2", "--max-new-tokens", "8", "--longest", "1", "--temperature", "0.8"]
    argv = [*sizes, "--rule", rule, "--oracle", "code-draft", "--model", "code-draft-tiny"]
    assert replay.main([*argv, "--trees", "kary:2x2", "paths:0.0,0.1,1,2"]) == 0
    trees = capsys.readouterr().out.split("### Trees")[1]
    assert trees.count("| kary:2x2 ") == trees.count("| paths:0.0,0.1,1,2 ") == 1
    assert trees.count("| yes") == (2 if rule == "coupled" else 0)


def test_trees_that_are_decided_as_they_grow_are_refused() -> None:
    with pytest.raises(SystemExit, match="replay: --trees grown:4x2: it is decided as it grows"):
        replay.main(["--trees", "grown:4x2"])


def test_a_temperature_that_cannot_be_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"replay: SamplingParams: temperature=-1.0 must be >= 0"):
        replay.main(["--oracle", "code-draft", "--model", "code-draft-tiny", "--temperature", "-1"])


def test_an_oracle_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SystemExit, match="replay: 'nowhere' is neither"):
        replay.main(["--oracle", "nowhere"])


def test_the_cost_of_records_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rounds", "1", "--num-prompts", "2", "--max-new-tokens", "4", "--threads", "1"]
    bench_records.main([*sizes, "--batch-sizes", "2"])
    printed = capsys.readouterr().out
    assert "node records, us/step" in printed
    assert printed.count("small_transformer") == len(bench_records.SAMPLINGS)
