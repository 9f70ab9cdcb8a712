"""The code of guides prints what they say."""

import re

import pytest

from tests.support.backends import needed_native
from tests.support.pages import DOCS


@pytest.mark.parametrize("guide", ["prefix-sharing.md", pytest.param("grammars.md", marks=pytest.mark.real)])
def test_the_code_prints_what_the_guide_says(guide: str, capsys: pytest.CaptureFixture[str]) -> None:
    needed_native()
    page = (DOCS / "guides" / guide).read_text(encoding="utf-8")
    (found,) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    exec(compile(found[0], guide, "exec"), {"__name__": "guide"})
    assert capsys.readouterr().out == found[1]
