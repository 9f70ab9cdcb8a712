"""The code of pages prints what they say; the front page stays short."""

import re
from typing import Any

import pytest

from tests.support.backends import needed_native
from tests.support.pages import ROOT

GRAMMARS = pytest.param("docs/guides/grammars.md", 1, marks=pytest.mark.real)


@pytest.mark.parametrize(("page", "count"), [("README.md", 2), ("docs/guides/prefix-sharing.md", 1), GRAMMARS])
def test_the_code_prints_what_the_page_says(page: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    needed_native()
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == count
    assert page != "README.md" or text.count("```python\n") == count, "all of its code says what it prints"
    names: dict[str, Any] = {"__name__": "page"}
    for code, said in blocks:
        exec(compile(code, page, "exec"), names)
        assert capsys.readouterr().out == said


def test_the_front_page_has_at_most_120_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
