"""Prompts of many lengths: the same place, more or less before it."""

import json
from pathlib import Path

import pytest

from experiments.studies import lengths
from tests.support.runs.experiments import common, summary_of, write_rows

TEXT = "".join(f"def f{i}(x):\n    return f{i}(x) + {i}\n" for i in range(40))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rows = [{"id": name, "prompt": TEXT + name} for name in ("a", "b")] + [{"id": "short", "prompt": "x"}]
    return write_rows(tmp_path / "texts.jsonl", rows)


def arguments(texts: Path, **changes: object) -> dict[str, object]:
    own = {"prompts": str(texts), "column": None, "oracle": "code-draft-tiny", "lengths": [16, 64], "num_prompts": 5}
    return {**own, "max_new_tokens": 8, **changes}


def test_prompts_end_at_the_same_place(texts, capsys):
    found = lengths.choose(arguments(texts))
    named = [(f"{name}, {length}", f"{length}") for length in (16, 64) for name in "ab"]
    assert [(prompt.name, prompt.kind) for prompt in found] == named
    assert found[2].text.endswith(found[0].text)
    assert TEXT.startswith(found[2].text)
    assert len(lengths.choose(arguments(texts, num_prompts=1))) == 2
    assert "left out: 1 of 3 texts have fewer than 72 ids" in capsys.readouterr().err


def test_texts_that_are_too_short_are_refused(texts):
    with pytest.raises(ValueError, match="no text has 5000 ids and 8 more: ask for shorter --lengths"):
        lengths.choose(arguments(texts, lengths=[16, 5000]))


def test_held_out_modules_are_those_of_the_split():
    names = [prompt.name for prompt in lengths.modules_held_out()]
    assert len(set(names)) == len(names) > 1
    assert all(prompt.text for prompt in lengths.modules_held_out())


def test_the_table_has_a_row_for_every_arm_and_length(texts, checkpoints, tmp_path, capsys):
    argv = common(checkpoints, tmp_path / "runs")
    argv[argv.index("--prompts") + 1] = str(texts)
    assert lengths.main([*argv, "--lengths", "64", "16", "16", "--strategies", "prompt_lookup", "lookahead"]) == 0
    rows = summary_of(tmp_path / "runs")["By length of the prompt"]
    wanted = [(arm, length) for arm in ("prompt_lookup", "lookahead") for length in (16, 64)]
    assert [(row["arm"], row["prompt"]) for row in rows] == wanted
    assert all(float(row["decoding alone"].split()[0]) > 0 for row in rows)
    printed = capsys.readouterr().out
    assert "\nBy length of the prompt\n" in printed
    assert "clustered by text (" in " ".join(printed.split())
    # A text counts once, whatever the lengths that it is cut to.
    (journal,) = (tmp_path / "runs").glob("lengths-*/units.jsonl")
    units = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert [unit.get("began", unit["unit"]) for unit in units] == [0, 1, 0, 1]
