"""What a step does goes between host and device through ``specdec.transfers`` alone, where it is counted.

A dispatch mode sees neither ``.tolist()`` nor ``.numpy()``, so they are looked for in the sources.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Where a step passes through: its rooms, the sources, and the oracle that computes on devices.
ROOMS = (
    "contracts",
    "draft_length",
    "drafting",
    "engine",
    "kv_cache",
    "laws",
    "requests",
    "rules",
    "shapes",
    "warping",
)
PLACES = [
    *(ROOT / "specdec" / room for room in ROOMS),
    *(ROOT / "specdec" / name for name in ("randomness.py", "tree.py")),
    ROOT / "drafts",
    ROOT / "oracles" / "graphed",
]
FILES = [path for place in PLACES for path in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
WAYS = {"numpy", "tolist", "item", "cpu", "cuda", "pin_memory"}


def other_ways(source: str) -> list[str]:
    """Return the calls of a source that bring something across, or may."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [ast.unparse(call) for call in calls if isinstance(call, ast.Attribute) and call.attr in WAYS]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_crosses_but_by_transfers(path):
    assert other_ways(path.read_text()) == []


def test_another_way_is_seen():
    assert other_ways("x = [y.cpu().numpy(), z[0].item()]\nids.tolist()\nnp.asarray(x)") == [
        "ids.tolist",
        "y.cpu().numpy",
        "z[0].item",
        "y.cpu",
    ]
