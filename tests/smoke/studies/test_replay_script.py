"""The script of replays: beside real runs."""

import pytest

from experiments import replay

pytestmark = pytest.mark.usefixtures("documents")


MODELS = ["--oracle", "code-draft", "--model", "code-draft-tiny"]
ASKED = [*MODELS, "--num-prompts", "2", "--max-new-tokens", "8", "--longest"]


def test_every_replay_takes_the_steps_of_its_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main([*ASKED, "3"]) == 0
    printed = capsys.readouterr().out
    assert "| yes" in printed
    assert "| no" not in printed


def test_without_coupling_runs_stand_beside_what_their_outputs_let_expect(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main([*ASKED, "3", "--temperature", "0.8", "--rule", "standard"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| prompt_lookup ") == 5
    assert printed.count("| small_transformer ") == 5, "all but the one that follows the share that stood"
    assert "tracked" not in printed.split("| small_transformer ", 1)[1]
    assert "| yes" not in printed


@pytest.mark.parametrize("rule", ["coupled", "standard"])
def test_trees_are_replayed_beside_their_runs(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*ASKED, "1", "--temperature", "0.8", "--rule", rule]
    assert replay.main([*argv, "--trees", "kary:2x2", "paths:0.0,0.1,1,2"]) == 0
    trees = capsys.readouterr().out.split("### Trees")[1]
    assert trees.count("| kary:2x2 ") == trees.count("| paths:0.0,0.1,1,2 ") == 1
    assert trees.count("| yes") == (2 if rule == "coupled" else 0)


OWN = """
from specdec import Entropy, Fixed, Kary

class Never(Entropy):
    adaptive = True

def of(longest=1):
    return Never(max_draft_tokens=longest)

few, tree, bush = Fixed(2), Kary(2, 2), 3
"""


def test_policies_and_trees_of_a_users_own_are_replayed_too(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    own = {name: f"{tmp_path}/own.py:{name}" for name in ("few", "of", "of:longest=3", "of:longest=4", "tree", "bush")}
    argv = [*ASKED, "3", "--temperature", "0.8", "--rule", "standard"]
    assert replay.main([*argv, "--lengths", own["few"], own["of"], own["of:longest=3"], "--trees", own["tree"]]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("| few ") == 2
    assert printed.out.count("| tree ") == 1
    assert "| of" not in printed.out
    assert [line.split(": ")[:2] for line in printed.err.splitlines() if line.startswith("left out")] == [
        ["left out", f"{name} of {source}"]
        for source in ("prompt_lookup", "small_transformer")
        for name in ("of", "of:longest=3")
    ]
    with pytest.raises(SystemExit, match="--lengths of:longest=4 drafts up to 4 tokens: give --longest as many"):
        replay.main([*argv, "--lengths", own["of:longest=4"]])
    with pytest.raises(SystemExit, match=r"--trees: .*own.py:bush: tree is .*, not a shape of trees"):
        replay.main([*argv, "--trees", own["bush"]])


REFUSED = {
    "--lengths few": "argument --lengths: few: what is your own is FILE.py:NAME",
    "--trees grown:4x2": "replay: --trees grown:4x2: it is decided as it grows",
    "--oracle nowhere": "replay: 'nowhere' is neither",
    "--oracle code-draft --model code-draft-tiny --temperature -1": "argument --temperature: must lie in [0, inf)",
}


@pytest.mark.parametrize(("asked", "words"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_replayed_is_refused(asked: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        replay.main(asked.split())
    assert words in f"{capsys.readouterr().err} {stop.value}"
