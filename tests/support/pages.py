"""The pages of the project: what every test of documents reads, and their code, as it is written."""

import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BENCHMARKS = ROOT / "benchmarks"
GROUPS = ("start", "guides", "strategies", "internals")
PAGES = sorted(
    [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *BENCHMARKS.glob("*.md"), *(ROOT / "oracles" / "embedded").glob("*.md")]
)


@cache
def run_recipe(name: str, num_blocks: int) -> dict[str, Any]:
    """Run the code of the page of that name from top to bottom, once, and return its names."""
    names: dict[str, Any] = {"__name__": "recipe"}
    (page,) = DOCS.rglob(name)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == num_blocks
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    return names
