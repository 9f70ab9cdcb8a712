"""No file of the product is long, no function is longer than a screen, and the whole tree stays small."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("specdec", "drafts", "oracles", "experiments", "exactspec")
WRITTEN = {".py", ".cpp", ".h", ".js", ".css", ".html"}
# Lines; a function's docstring is not counted.
OF_FILE, OF_FUNCTION = 350, 50
# Bytes of all that is checked out, but for some small files at the root.
OF_TREE = 90_000_000 - 50_000


def own_lines(function: ast.FunctionDef) -> int:
    """Return how many lines a function has, without its docstring."""
    parts = [function] if ast.get_docstring(function) is None else [function, function.body[0]]
    whole, *told = ((part.end_lineno or 0) - part.lineno + 1 for part in parts)
    return whole - sum(told)


def long_parts(source: str, is_python: bool = True) -> list[str]:
    """Return "file" if a source is too long, and its functions that are."""
    found = ["file"] if len(source.splitlines()) > OF_FILE else []
    nodes = ast.walk(ast.parse(source)) if is_python else ()
    return found + [node.name for node in nodes if isinstance(node, ast.FunctionDef) and own_lines(node) > OF_FUNCTION]


def test_files_and_functions_of_the_product_are_short():
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*")) if path.suffix in WRITTEN]
    assert {*ROOMS} <= {path.parent.name for path in paths}
    found = {str(path.relative_to(ROOT)): long_parts(path.read_text("utf-8"), path.suffix == ".py") for path in paths}
    assert {name: parts for name, parts in found.items() if parts} == {}


def test_the_tree_stays_below_90_megabytes():
    folders = (*ROOMS, "tests", "docs", "benchmarks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files if path.is_file()) < OF_TREE


@pytest.mark.parametrize("more", [0, 1])
def test_one_line_too_many_is_seen(more):
    body = "    x = 1\n" * (OF_FUNCTION - 1 + more)
    assert long_parts(f'def f():\n    """Tell\n\n    more.\n    """\n{body}') == ["f"] * more
    for is_python in (True, False):
        assert long_parts("x = 1\n" * (OF_FILE + more), is_python) == ["file"] * more
