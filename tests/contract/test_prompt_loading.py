"""Prompts from files of every kind, and errors that name the fix."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specdec.prompts import NamedPrompt, load_prompts

SPEC_BENCH: list[dict[str, object]] = [
    {"question_id": 81, "category": "writing", "turns": ["Write a letter.", "Shorten it."]},
    {"question_id": 91, "category": "math", "turns": ["What is 2 + 2?"], "reference": ["4"]},
    {"question_id": 240, "category": "qa", "turns": ["Who was first?"]},
]


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_spec_bench_loads_as_it_is(tmp_path: Path) -> None:
    prompts = load_prompts(write_lines(tmp_path / "question.jsonl", SPEC_BENCH))
    assert prompts == [
        NamedPrompt("81", "writing", "Write a letter."),
        NamedPrompt("91", "math", "What is 2 + 2?"),
        NamedPrompt("240", "qa", "Who was first?"),
    ]


def test_text_has_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("first\nsecond é\n", encoding="utf-8")
    assert load_prompts(path) == [NamedPrompt("row 0", "all", "first"), NamedPrompt("row 1", "all", "second é")]


def test_parquet_and_column(tmp_path: Path) -> None:
    import datasets

    path = tmp_path / "prompts.parquet"
    columns = {"text": ["a", "b"], "body": ["x", "y"], "kind": ["k", "l"]}
    datasets.Dataset.from_dict(columns).to_parquet(path)
    assert [prompt.text for prompt in load_prompts(path)] == ["a", "b"]
    assert load_prompts(path, column="body") == [NamedPrompt("row 0", "k", "x"), NamedPrompt("row 1", "l", "y")]


def test_num_prompts_are_spread_over_the_kinds(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"id": f"p{i}", "kind": "abc"[i % 3], "prompt": f"text {i}"} for i in range(12)]
    path = write_lines(tmp_path / "p.jsonl", rows)
    prompts = load_prompts(path, num_prompts=4)
    assert [(prompt.name, prompt.kind) for prompt in prompts] == [("p0", "a"), ("p5", "c"), ("p7", "b"), ("p9", "a")]
    assert len(load_prompts(path, num_prompts=99)) == 12


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", [{"prompt": "before"}])
    assert load_prompts(path)[0].text == "before"
    write_lines(path, [{"prompt": "after, and longer"}])
    assert load_prompts(path)[0].text == "after, and longer"


@pytest.mark.parametrize(
    ("rows", "column", "message"),
    [
        ([{"body": "x"}], None, r"columns \['body'\], not one of .*--column"),
        ([{"prompt": "x"}], "body", r"columns \['prompt'\], not 'body'; .*--column"),
        ([{"prompt": "x"}, {"prompt": ""}], None, "row 1 has no text in column 'prompt'"),
        ([{"turns": ["x"]}, {"turns": []}], None, "row 1 has no text in column 'turns'"),
        ([{"prompt": 3}], None, "row 0 has no text in column 'prompt' but 3"),
    ],
)
def test_bad_rows_name_the_fix(tmp_path: Path, rows: list[dict[str, object]], column: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_prompts(write_lines(tmp_path / "p.jsonl", rows), column=column)


def test_bad_sources_name_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist; check the path"):
        load_prompts(tmp_path / "absent.jsonl")
    (tmp_path / "p.csv").write_text("a,b\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"ends in '.csv'; give a file"):
        load_prompts(tmp_path / "p.csv")
    (tmp_path / "broken.jsonl").write_text('{"prompt": \n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"broken.jsonl could not be read as json"):
        load_prompts(tmp_path / "broken.jsonl")
    with pytest.raises(ValueError, match="num_prompts must be at least 1"):
        load_prompts(tmp_path / "p.csv", num_prompts=0)


def test_importing_the_module_does_not_import_datasets() -> None:
    code = "import sys, specdec.prompts; sys.exit('datasets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
