"""The README's code prints what it says, and the page stays short."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.backends import needed_native

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)


def test_the_code_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    needed_native()
    assert len(BLOCKS) == README.count("```python\n") == 2
    names: dict[str, Any] = {"__name__": "readme"}
    for code, said in BLOCKS:
        exec(compile(code, "README.md", "exec"), names)
        assert capsys.readouterr().out == said


def test_the_page_has_at_most_120_lines() -> None:
    assert len(README.splitlines()) <= 120
