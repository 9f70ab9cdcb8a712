"""Draft sources and rules of one's own in place of names: found in files and modules, or refused with the fix."""

import re
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from experiments import watch
from experiments.advise import __main__ as advise
from experiments.harness import own_code
from experiments.harness import running as harness
from experiments.harness.arguments import fingerprint
from experiments.harness.building import build_named
from experiments.harness.own_places import load_own
from experiments.load import __main__ as load
from experiments.load.load_arms import build_arms
from experiments.report import PAGE
from experiments.report import __main__ as report
from experiments.studies.crossover import __main__ as crossover
from experiments.studies.crossover.batch_sizes import Crossover
from tests.support.models.tiny_models import tiny_transformer
from tests.support.runs.experiments import common, read_json, summary_of, the_folder

MINE = """
import drafts
from beside import LENGTH
from specdec.verify import Standard

class Own(Standard):
    name = "own"

    def __call__(self, draft, laws):
        return super().__call__(draft, laws)

@drafts.stateless(num_draft_tokens=LENGTH)
def repeat_last(ids: list[int], budget: int) -> list[int]:
    return ids[-1:] * budget

def lookup(oracle):
    return drafts.NGram.train([list(range(oracle.vocab_size))], order=2, vocab_size=oracle.vocab_size)

def nothing(oracle):
    pass

def of_length(oracle, num_draft_tokens=4):
    return drafts.PromptLookup(num_draft_tokens)

def of_run(oracle, settings, words="few", count=1):
    if words != "few":
        raise ValueError(f"{words} words are too many")
    return drafts.PromptLookup(count if settings["temperature"] == 0 else count + 1)

number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    own_code._content.cache_clear()
    for name in ("mine", "again"):
        (tmp_path / f"{name}.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "beside.py").write_text("LENGTH = 2\n", encoding="utf-8")
    return tmp_path / "mine.py"


def test_a_source_of_a_file_and_what_a_function_makes_are_arms(mine, checkpoints, tmp_path, capsys):
    places = [f"{mine}:repeat_last", f"{mine}:lookup"]
    assert harness.script("compare", "", [*common(checkpoints, tmp_path / "out"), "--strategies", *places]) == 0
    summary = summary_of(tmp_path / "out")
    assert list(summary["arms"]) == ["plain", "repeat_last", "lookup"], "no strategy beside them was asked for"
    assert len({arm["identical"] for arm in summary["arms"].values()}) == 1
    assert summary["provenance"]["arguments"]["strategies"] == places
    assert "repeat_last" in capsys.readouterr().out


def test_strategies_run_beside_it_if_they_are_named(mine, checkpoints, tmp_path):
    argv = [*common(checkpoints, tmp_path / "out"), "--strategies", "prompt_lookup", f"{mine}:repeat_last"]
    assert harness.script("compare", "", argv) == 0
    assert list(summary_of(tmp_path / "out")["arms"]) == ["plain", "prompt_lookup", "repeat_last"]


def test_a_neighbour_of_the_same_name_as_another_files_is_refused(mine, checkpoints, tmp_path):
    (other := tmp_path / "other").mkdir()
    for name in ("mine.py", "beside.py"):
        (other / name).write_bytes((tmp_path / name).read_bytes())
    argv = [*common(checkpoints, tmp_path / "out"), "--strategies", f"{mine}:lookup", f"{other}/mine.py:repeat_last"]
    with pytest.raises(
        SystemExit, match=f"{other}/mine.py imports beside, and that is {tmp_path}/beside.py here: give"
    ):
        harness.script("compare", "", argv)


def key_of(argv: dict[str, Any]) -> str:
    """Return the key of an experiment in a process that has just begun."""
    own_code._content.cache_clear()
    return fingerprint(argv, [])


CHANGED = {
    "a file": ({"strategies": ["{mine}:lookup"]}, "mine.py"),
    "a file in an arm of a load": ({"arms": ["{mine}:of_length:2/3"]}, "mine.py"),
    "a file of one strategy": ({"strategy": "{mine}:of_length"}, "mine.py"),
    "a file of a shape": ({"tree.shape": "{mine}:shape:width=2"}, "mine.py"),
    "a module": ({"strategies": ["again:lookup"]}, "again.py"),
    "a rule's module": ({"rule": "again:Own"}, "again.py"),
    "what a file imports": ({"strategies": ["{mine}:lookup"]}, "beside.py"),
    "what that imports in a function": ({"strategies": ["{mine}:lookup"]}, "parcel/deep.py"),
    "a package's own": ({"strategies": ["parcel.inner:lookup"]}, "parcel/__init__.py"),
    "what a module of a package imports": ({"strategies": ["parcel.inner:lookup"]}, "parcel/deep.py"),
}


@pytest.mark.parametrize(("argv", "changed"), CHANGED.values(), ids=CHANGED)
def test_changed_code_of_a_users_own_is_another_experiment(argv, changed, mine, monkeypatch):
    monkeypatch.chdir(mine.parent)
    files = {
        "beside.py": "LENGTH = 2\n\ndef late():\n    from parcel import deep, VALUE\n",
        "parcel/__init__.py": "VALUE = 1\n",
        "parcel/inner.py": "from . import deep\nfrom .... import nothing\n",
        "parcel/deep.py": "import logging\nimport parcel.inner\nimport torch\n",
        "parcel/logging.py": "",
        "parcel/unread.py": "",
    }
    (mine.parent / "parcel").mkdir()
    for name, content in files.items():
        (mine.parent / name).write_text(content, encoding="utf-8")
    named = {
        name: [one.format(mine=mine) for one in value] if isinstance(value, list) else value.format(mine=mine)
        for name, value in argv.items()
    }
    before = key_of(named)
    (mine.parent / "parcel" / "unread.py").write_text("number = 3", encoding="utf-8")
    assert key_of(named) == before, "nothing imports it"
    file = mine.parent / changed
    file.write_text(file.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert fingerprint(named, []) == before, "this process runs what there was"
    assert key_of(named) != before
    assert not {"beside", "parcel", str(mine)} & set(sys.modules), "nothing was run"


def test_what_is_not_there_has_a_key_too(mine):
    assert key_of({"strategies": ["nowhere.at_all:lookup", "absent.py:lookup"]}), "refused later, with the reason"


def test_a_file_that_failed_is_run_again(mine, checkpoints, tmp_path):
    argv = [*common(checkpoints, tmp_path / "out"), "--strategies", f"{mine}:repeat_last"]
    mine.write_text(f"number = 3\n1 / 0\n{MINE}", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            harness.script("compare", "", argv)


def test_it_is_watched_by_its_name(mine, capsys):
    argv = ["def add(a, b):", "--oracle", "code-draft-tiny", "--max-new-tokens", "4", "--repeats", "1"]
    assert watch.main([*argv, "--strategy", f"{mine}:repeat_last"]) == 0
    assert re.search(r"^repeat_last +[\d.]+ tokens a step", capsys.readouterr().out, re.MULTILINE)


def test_a_rule_judges_what_drafts_and_not_plain_decoding(mine, checkpoints, tmp_path):
    argv = [
        *common(checkpoints, tmp_path / "out"),
        "--temperature",
        "0.8",
        "--trace",
        "1",
        "--strategies",
        "prompt_lookup",
    ]
    assert harness.script("compare", "", [*argv, "--rule", f"{mine}:Own"]) == 0
    summary = summary_of(tmp_path / "out")
    assert {name: (arm["rule"], arm["claim"]) for name, arm in summary["arms"].items()} == {
        "plain": ("standard", "exact"),
        "prompt_lookup": ("own", "exact"),
    }
    assert report.main([str(the_folder(tmp_path / "out"))]) == 0
    assert "drawn by rule own:" in (the_folder(tmp_path / "out") / PAGE).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("prompt_lookup --rule own", "there is no rule 'own'"),
        ("prompt_lookup --rule {mine}:absent", "there is no absent in"),
        ("prompt_lookup --rule {mine}:number", "rule int lacks name"),
        ("mine.py", "there is no strategy 'mine.py'"),
        ("mine.py:", "what is your own is FILE.py:NAME or MODULE:NAME"),
        ("absent.py:lookup", "there is no file absent.py"),
        ("{mine}:absent", "there is no absent in"),
        ("{mine}:Own", "mine.py:Own is the class Own, not a draft source; give an object"),
        ("{mine}:number", "is 3, not a draft source"),
        ("nowhere_at_all:lookup", "there is no module nowhere_at_all"),
        ("{mine}:nothing", "mine.py:nothing makes is of type NoneType, not a draft source"),
        ("{mine}:lookup {mine.parent}/again.py:lookup", "two arms are called lookup"),
        ("{mine}:of_run:words=many", "mine.py:of_run:words=many: many words are too many"),
        ("{mine}:of_run:cuont=2", "mine.py:of_run:cuont=2: got an unexpected keyword argument 'cuont'"),
        ("{mine}:of_run:settings=2", "the program itself gives settings: leave it out"),
        ("{mine}:of_run:count=os.name", "the values of a place are KEY=VALUE,KEY=VALUE"),
        ("{mine}:Own:count=2", "values are for a function of the oracle"),
        ("broken.py:x", "broken.py:x: it is broken"),
    ],
)
def test_what_is_no_source_is_refused(place, words, mine, checkpoints, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(mine.parent)
    (tmp_path / "broken.py").write_text("raise ValueError('it is broken')", encoding="utf-8")
    argv = [*common(checkpoints, tmp_path), "--strategies", *place.format(mine=mine).split()]
    with pytest.raises(SystemExit) as end:
        harness.script("compare", "", argv)
    assert words in f"{end.value}{capsys.readouterr().err}"


def test_where_sources_go_by_their_names_two_of_one_name_are_refused(mine):
    places = [f"{mine}:repeat_last", f"{mine.with_name('again.py')}:repeat_last"]
    with pytest.raises(ValueError, match="two arms are called repeat_last"):
        build_named({"strategies": places}, None)
    with pytest.raises(ValueError, match="two arms are called plain"):
        build_named({"strategies": [f"{mine}:plain"]}, None)


def test_a_function_is_given_the_lengths_that_a_program_chooses(mine, checkpoints, tmp_path):
    place, oracle = f"{mine}:of_length", tiny_transformer()
    arms = build_arms(load.parse(["--arms", place, f"{place}:2/3", f"{mine}:repeat_last/3"]), oracle)
    depths = {"plain": 0, "of_length": 4, "of_length 2, budget 3": 2, "repeat_last, budget 3": 2}
    assert {name: arm.decoder.offers.max_depth for name, arm in arms.items()} == depths
    crossing = Crossover(crossover.parse(["--strategy", place, "--draft-lengths", "1", "3"]), oracle, []).arms(1)
    assert {k: arm.decoder.offers.max_depth for k, arm in crossing.items()} == {0: 0, 1: 1, 3: 3}
    argv = [*common(checkpoints, tmp_path / "out"), "--batch-sizes", "1", "--temperatures", "0", "--longest", "2"]
    assert advise.main([*argv, "--strategies", "prompt_lookup", place]) == 0
    (cell,) = read_json(the_folder(tmp_path / "out") / "advice.json")["cells"]
    assert [row["strategy"] for row in cell["rows"]] == ["prompt_lookup", "of_length"]


@pytest.mark.parametrize("name", ["repeat_last", "lookup", "number", "Own"])
def test_where_lengths_are_chosen_a_source_without_one_is_refused(name, mine, checkpoints, tmp_path):
    told = f"{mine}:{name}: drafts of given lengths .* def NAME\\(oracle, num_draft_tokens\\)"
    for option, program in {"--strategies": advise, "--strategy": crossover, "--arms": load}.items():
        sizes = [] if program is load else ["--batch-sizes", "1"]
        place = f"{mine}:{name}" + (":2" if program is load else "")
        with pytest.raises(SystemExit, match=told):
            program.main([*common(checkpoints, tmp_path), *sizes, option, place])


def test_a_function_is_given_the_values_of_its_place_and_the_settings_of_the_run(mine, checkpoints, tmp_path):
    places = [f"{mine}:of_run:count=3", f"{mine}:of_run:words=few,count=2", f"{mine}:of_run"]
    argv = [*common(checkpoints, tmp_path / "out"), "--temperature", "0.8", "--strategies", *places]
    assert harness.script("compare", "", argv) == 0
    records = pq.read_table(the_folder(tmp_path / "out") / "records.parquet").to_pylist()
    longest = {
        arm: max(row["num_drafted"] for row in records if row["arm"] == arm)
        for arm in summary_of(tmp_path / "out")["arms"]
    }
    assert longest == {"plain": 0, "of_run:count=3": 4, "of_run:words=few,count=2": 3, "of_run": 2}
    oracle = tiny_transformer()
    loaded = build_arms(
        load.parse(["--arms", f"{mine}:of_run:count=5/3", f"{mine}:of_length:num_draft_tokens=3"]), oracle
    )
    assert {name: arm.decoder.offers.max_depth for name, arm in loaded.items()} == {
        "plain": 0,
        "of_run:count=5, budget 3": 5,
        "of_length:num_draft_tokens=3": 3,
    }


def test_a_module_of_the_working_folder_is_found_by_the_command_too(mine, monkeypatch):
    monkeypatch.chdir(mine.parent)
    monkeypatch.delitem(sys.modules, "again", raising=False)
    assert load_own("again:number") == 3
