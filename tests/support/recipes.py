"""The code of a page, as it is written."""

import re
from functools import cache
from typing import Any

from tests.support.pages import ROOT


@cache
def run_recipe(guide: str, num_blocks: int) -> dict[str, Any]:
    """Run the code of a guide from top to bottom, once, and return its names."""
    names: dict[str, Any] = {"__name__": "recipe"}
    page = ROOT / "docs" / "guides" / guide
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == num_blocks
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    return names
