"""Docstrings say which shapes arrays have: of every public function that takes or returns some."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ROOTS = (
    "specdec",
    "drafts",
    "oracles",
    "experiments",
)  # whose functions are asked; they may refer to names of each other

ARRAY = re.compile(r"\b(?:Tensor|NDArray|ndarray|\w*Array)\b")
SHAPE = re.compile(r"``(?:\w+ \+ )?\[[^\[\]`]*\]``")  # ``[B, N]``, ``S + [V]``; not ``ids[b]``
REFERENCE = re.compile(r"\b(?:[Ss]ee|as in|as by)\s+``([\w.]+)``")

Definition = ast.FunctionDef | ast.ClassDef


def definitions(nodes: list[ast.stmt], inside: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield the public classes and functions of a module, and of its classes, by their qualified names."""
    for node in nodes:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield inside + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body, f"{inside}{node.name}.")


def has_arrays(function: ast.FunctionDef) -> bool:
    """Tell whether a signature names a tensor or an array."""
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    annotations = [function.returns, *(argument.annotation for argument in arguments if argument is not None)]
    return any(ARRAY.search(ast.unparse(annotation)) for annotation in annotations if annotation is not None)


def names_shape(node: Definition) -> bool:
    """Tell whether a docstring names a shape."""
    return SHAPE.search(ast.get_docstring(node) or "") is not None


def unshaped(source: str, shaped: set[str]) -> list[str]:
    """Return the functions with arrays that neither name a shape nor refer to one of ``shaped``, which do."""
    found = []
    for name, node in definitions(ast.parse(source).body):
        if isinstance(node, ast.FunctionDef) and has_arrays(node) and not names_shape(node):
            owner = name.rpartition(".")[0]
            others = REFERENCE.findall(ast.get_docstring(node) or "")
            # ``Class.method``, ``package.function``, or a method of the same class by its name alone.
            meant = {".".join(other.split(".")[-depth:]) for other in others for depth in (1, 2)}
            meant |= {f"{owner}.{other}" for other in others}
            if not meant & (shaped - {name}):
                found.append(name)
    return found


@cache
def shaped_names() -> set[str]:
    """Return the qualified names, in all roots, whose docstrings name a shape."""
    files = [path for root in ROOTS for path in (ROOT / root).rglob("*.py")]
    found = (one for path in files for one in definitions(ast.parse(path.read_text(encoding="utf-8")).body))
    return {name for name, node in found if names_shape(node)}


def test_every_public_function_with_arrays_names_a_shape() -> None:
    found = {}
    for path in sorted(path for root in ROOTS for path in (ROOT / root).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        found[file] = unshaped(path.read_text(encoding="utf-8"), shaped_names())
    assert not {file: names for file, names in found.items() if names}


def test_a_function_without_a_shape_is_found() -> None:
    for text, is_found in (
        ("Return it ``[B, N]``.", False),
        ("Return probabilities ``S + [V]``.", False),
        ("Return it; see ``Protocol.method``.", False),
        ("Arguments as in ``put``.", False),
        ("Keep the first ``count[b]`` ids.", True),
        ("Return it; see ``Protocol.unknown``.", True),
        ("Return it; see ``get``.", True),
        ("Return it.", True),
    ):
        source = f'class Cache:\n    def get(self, rows: "IntArray") -> None:\n        """{text}"""\n'
        assert unshaped(source, {"Protocol.method", "Cache.put"}) == (["Cache.get"] if is_found else []), text
