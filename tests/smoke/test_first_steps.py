"""The first steps print what their page says."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.harness import running as harness

PAGE = (Path(__file__).parents[2] / "docs" / "start" / "first-steps.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def rounded(printed: str) -> str:
    """Return a text whose numbers have six decimals at most: the last ones are the machine's."""
    return re.sub(r"\d+\.\d{7,}", lambda found: f"{float(found[0]):.6f}", printed)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, with the records of the page alone."""
    (records,) = re.findall(r"cat records\.jsonl\n(.*?)^\$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "records.jsonl").write_text(records, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed_by(blocks: list[str], capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """Run blocks of code one after the other, and yield what each prints."""
    names: dict[str, Any] = {"__name__": "first_steps"}
    for block in blocks:
        exec(compile(block, "first-steps.md", "exec"), names)
        yield capsys.readouterr().out


def test_the_code_prints_what_the_page_says(folder, capsys):
    assert len(BLOCKS) == PAGE.count("```python\n") == 4
    for printed, (_, said) in zip(printed_by([code for code, _ in BLOCKS], capsys), BLOCKS, strict=True):
        assert rounded(printed) == rounded(said)


def test_a_source_on_recorded_text_has_the_acceptance_that_the_page_says(folder, capsys):
    command, said = re.findall(r"^\$ exactspec prompt_lookup (.*)\n\.\.\.\n(.*?)```", PAGE, re.M | re.S)[0]
    assert harness.script("prompt_lookup", "", command.split()) == 0
    assert said in capsys.readouterr().out
