"""The shipped prompts: from the test split only, balanced, unique, shared with no training text."""

import json
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from experiments.prompts import make_code as make_prompts
from experiments.prompts.make_code import Distinct, Prompt
from oracles.factory.corpus import Entry, SourceFile, load_manifest, read_split, stdlib_folder
from oracles.factory.corpus.passage_index import PASSAGE_TOKENS
from tests.support.texts.corpus_rows import gathered

ROWS = [json.loads(line) for line in make_prompts.OUT.read_text(encoding="utf-8").splitlines()]
TOKENIZER = Tokenizer.from_file(str(make_prompts.TOKENIZER))


def test_at_least_a_hundred_and_twenty_prompts_in_balance() -> None:
    counts = Counter(row["kind"] for row in ROWS)
    assert set(counts) == set(make_prompts.KINDS)
    assert min(counts.values()) >= 40
    assert len(ROWS) >= 120


def test_prompts_come_from_test_modules_only() -> None:
    assert {row["module"] for row in ROWS} <= {entry.module for entry in load_manifest().split("test")}


def test_prompts_are_unique_and_of_the_stated_length() -> None:
    assert len({row["id"] for row in ROWS}) == len({row["prompt"] for row in ROWS}) == len(ROWS)
    lengths = [len(TOKENIZER.encode(row["prompt"]).ids) for row in ROWS]
    assert min(lengths) >= make_prompts.MIN_TOKENS
    assert max(lengths) <= make_prompts.MAX_TOKENS


def test_prompts_share_no_passage_with_each_other() -> None:
    assert len(Distinct(TOKENIZER).choose(Prompt(**row) for row in ROWS)) == len(ROWS)


def test_a_copy_heavy_prompt_already_holds_most_of_what_follows() -> None:
    for row in ROWS:
        if row["kind"] == "copy_heavy":
            assert make_prompts.kept_share(row["reference"], row["prompt"]) >= make_prompts.MIN_KEPT, row["id"]


@gathered
@pytest.mark.long
def test_the_script_makes_the_committed_file() -> None:
    train = (source.text for source in read_split("train"))
    made = make_prompts.make_prompts(read_split("test"), TOKENIZER, train)
    assert [vars(prompt) for prompt in made] == ROWS


def source(package: str, path: str) -> SourceFile:
    """Return a file of the local standard library as if it came from a package."""
    text = (stdlib_folder() / path).read_text(encoding="utf-8")
    return SourceFile(Entry(package, path, "", len(text.encode()), "test"), text)


SOURCES = [source("one", "argparse.py"), source("one", "inspect.py"), source("two", "tarfile.py")]


FEW = 6


@pytest.fixture(scope="module")
def made() -> list[Prompt]:
    return make_prompts.make_prompts(SOURCES, TOKENIZER, [], FEW)


def test_made_prompts_take_turns_and_share_nothing(made: list[Prompt]) -> None:
    assert [prompt.kind for prompt in made] == list(make_prompts.KINDS) * FEW
    assert Distinct(TOKENIZER).choose(made) == made
    assert {prompt.module for prompt in made} == {"argparse", "inspect", "tarfile"}


def test_packages_and_their_modules_come_in_turns() -> None:
    for prompts in make_prompts.candidates(SOURCES, TOKENIZER, 8).values():
        modules = [prompt.module for prompt in prompts[:4]]
        assert modules[0::2] in (["tarfile"] * 2, ["argparse", "inspect"], ["inspect", "argparse"])
        assert Counter(modules) == {"tarfile": 2, "argparse": 1, "inspect": 1}


def test_prompts_that_share_a_passage_with_the_training_text_go(made: list[Prompt]) -> None:
    lines = made[0].prompt.split("\n")
    ids = TOKENIZER.encode(made[0].prompt).ids
    assert len(ids) >= 2 * PASSAGE_TOKENS
    kept = make_prompts.drop_shared(made, TOKENIZER, ["x = 1\n", f"x = 1\n{made[0].prompt}\nx = 2\n"])
    assert kept == made[1:]
    assert make_prompts.drop_shared(made, TOKENIZER, ["x = 1\n", lines[-1]]) == made


def test_a_passage_shared_with_the_reference_alone_counts(made: list[Prompt]) -> None:
    row = next(prompt for prompt in made if len(TOKENIZER.encode(prompt.reference).ids) > 2 * PASSAGE_TOKENS)
    assert row not in make_prompts.drop_shared(made, TOKENIZER, [row.reference])


def test_a_prompt_that_repeats_another_goes(made: list[Prompt]) -> None:
    first, second, *_ = made
    again = Prompt("again", first.kind, first.module, first.prompt, first.reference)
    assert Distinct(TOKENIZER).choose([first, again, second]) == [first, second]
    assert Distinct(TOKENIZER).choose([first, again, second], 1) == [first]


def test_the_kept_share_counts_lines_that_are_not_blank() -> None:
    assert make_prompts.kept_share("a\n\nb\nc\nd", "d\nb\na\nx") == 0.75
    assert make_prompts.kept_share("\n \n", "a") == 0.0


def test_too_few_prompts_are_an_error() -> None:
    with pytest.raises(ValueError, match="too few prompts"):
        make_prompts.make_prompts(SOURCES[:1], TOKENIZER, [SOURCES[0].text], FEW)


def test_the_command_takes_a_tokenizer(made: list[Prompt], tmp_path: Path, monkeypatch) -> None:
    splits: dict[str, list[SourceFile]] = {"train": [], "test": SOURCES}
    monkeypatch.setattr(make_prompts, "read_split", splits.__getitem__)
    out = tmp_path / "new" / "prompts.jsonl"
    make_prompts.main(["--tokenizer", str(make_prompts.TOKENIZER), "--out", str(out), "--per-kind", str(FEW)])
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == list(map(vars, made))


def test_no_prompts_are_not_written_over_those_that_ship(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_prompts.main(["--per-kind", "0", "--out", str(tmp_path / "prompts.jsonl")])
    assert "argument --per-kind: must be at least 1, got 0" in capsys.readouterr().err
