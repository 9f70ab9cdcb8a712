"""Prompts of many lengths: the same place, more or less before it."""

import json
from pathlib import Path

import pytest

from experiments import lengths
from tests.support.experiments import common

TEXT = "".join(f"def f{i}(x):\n    return f{i}(x) + {i}\n" for i in range(40))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.jsonl"
    rows = [{"id": name, "prompt": TEXT + name} for name in ("a", "b")] + [{"id": "short", "prompt": "x"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def arguments(texts: Path, **changes: object) -> dict[str, object]:
    own = {"prompts": str(texts), "column": None, "oracle": "code-draft-tiny", "lengths": [16, 64], "num_prompts": 5}
    return {**own, "max_new_tokens": 8, **changes}


def test_prompts_end_at_the_same_place(texts):
    found = lengths.choose(arguments(texts))
    assert [(prompt.name, prompt.kind) for prompt in found] == [
        ("a, 16", "16"),
        ("b, 16", "16"),
        ("a, 64", "64"),
        ("b, 64", "64"),
    ]
    assert found[2].text.endswith(found[0].text)
    assert TEXT.startswith(found[2].text)
    assert len(lengths.choose(arguments(texts, num_prompts=1))) == 2


def test_texts_that_are_too_short_are_refused(texts):
    with pytest.raises(ValueError, match="no text has 5000 ids and 8 more: ask for shorter --lengths"):
        lengths.choose(arguments(texts, lengths=[16, 5000]))


def test_held_out_modules_are_those_of_the_split():
    names = {prompt.name for prompt in lengths.modules_held_out()}
    assert names
    assert all(prompt.text for prompt in lengths.modules_held_out())


def test_the_table_has_a_row_for_every_arm_and_length(texts, checkpoints, tmp_path, capsys):
    argv = common(checkpoints, tmp_path / "runs")
    argv[argv.index("--prompts") + 1] = str(texts)
    assert lengths.main([*argv, "--lengths", "64", "16", "16", "--strategies", "prompt_lookup", "lookahead"]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    rows = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["By length of the prompt"]
    assert [(row["arm"], row["prompt"]) for row in rows] == [
        ("prompt_lookup", 16),
        ("prompt_lookup", 64),
        ("lookahead", 16),
        ("lookahead", 64),
    ]
    assert all(float(row["decoding alone"].split()[0]) > 0 for row in rows)
    assert "\nBy length of the prompt\n" in capsys.readouterr().out
