"""How much of a text another tokenizer can draft, from the command line, on tokenizers of three letters."""

from pathlib import Path

import pytest
from tokenizers import normalizers

from experiments.studies import overlap
from tests.support.models.counting import letters
from tests.support.runs.experiments import write_rows


def tokenizers_in(folder: Path) -> list[str]:
    """Return both tokenizers of a command line: the same one, which makes no ids of blanks."""
    tokenizer = letters(("a", "b", "c"))
    tokenizer.normalizer = normalizers.Strip()
    tokenizer.save(str(folder / "tokenizer.json"))
    return [str(folder / "tokenizer.json")] * 2


def test_files_of_one_name_have_a_row_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for folder, text in (("one", "ab"), ("two", "abcab")):
        (tmp_path / folder).mkdir()
        files.append(str(write_rows(tmp_path / folder / "texts.jsonl", [{"prompt": text}])))
    overlap.main([*tokenizers_in(tmp_path), "--prompts", *files])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("texts ")]
    assert [row[1] for row in rows] == ["2", "5"]


def test_texts_without_ids_are_refused(tmp_path: Path) -> None:
    blank = write_rows(tmp_path / "blank.jsonl", [{"prompt": "  "}])
    words = r"^overlap: --prompts: the target's tokenizer makes no ids of the texts of blank: give others"
    with pytest.raises(SystemExit, match=words):
        overlap.main([*tokenizers_in(tmp_path), "--prompts", str(blank)])
