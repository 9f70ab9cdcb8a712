"""The code at places of a user's own, and what it imports of the user's: found by reading it, not by running it."""

import ast
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path

from exactspec.stand_ins import OURS
from experiments.harness.own_places import is_file, is_place, reach, where_of

_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD = Path(os.__file__).resolve().parent


def own_code(texts: Iterable[str]) -> str:
    """Return a hash of the code at those texts that are places, or begin with one, and of what it imports.

    Modules that are installed, of Python or of ours are left out; so is what is imported by a name that is computed.

    Raises:
        ValueError: a file imports a name of a file beside it that stands for another one here.

    Guarantee: a file counts as it was at the first call: a process runs the code that there was when it began.
    """
    wheres = sorted({where_of(text) for text in texts if is_place(text)})
    reach(wheres)
    found: dict[Path, bytes] = {}
    waiting = [one for where in wheres for one in _roots(where)]
    while waiting:
        path, package = waiting.pop()
        if path not in found:
            found[path] = _content(path)
            names = [*_imported(found[path], package)] if _is_own(path) else []
            if not package:
                _check_neighbours(path, names)
            waiting += (one for name in names for one in _files(name) if _is_own(one[0]))
    digest = hashlib.sha256()
    for one in sorted(hashlib.sha256(content).digest() for content in found.values()):
        digest.update(one)
    return digest.hexdigest()


def _check_neighbours(path: Path, names: Iterable[str]) -> None:
    """Raise ValueError if a module that a file imports is another one than that beside the file."""
    for name in names:
        beside, others = path.parent / f"{name}.py", [file for file, _ in _files(name)]
        if beside.is_file() and others and others[-1] != beside.resolve() and _is_own(others[-1]):
            raise ValueError(
                f"{path} imports {name}, and that is {others[-1]} here: give the file beside it another name"
            )


@cache
def _content(path: Path) -> bytes:
    return path.read_bytes()


def _roots(where: str) -> list[tuple[Path, str]]:
    """Return the files of a place, each with its package ("": none); a module's are also the packages that hold it."""
    if not is_file(where):
        return [*_files(where)]
    path = Path(where).resolve()
    return [(path, "")] if path.is_file() else []


def _files(name: str) -> Iterator[tuple[Path, str]]:
    """Yield the files that importing a module runs, each with its package: those of the packages that hold it first."""
    parts, path = name.split("."), None
    if parts[0] in OURS:
        return
    for end in range(1, len(parts) + 1):
        if (spec := _find(".".join(parts[:end]), path)) is None:
            return
        if spec.has_location and spec.origin is not None and os.path.isfile(spec.origin):
            yield Path(spec.origin).resolve(), spec.parent or ""
        if (path := spec.submodule_search_locations) is None:
            return


def _find(name: str, path: list[str] | None) -> ModuleSpec | None:
    """Return where a module is, without importing the package that holds it, which lies in the folders of ``path``."""
    found = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


def _imported(content: bytes, package: str) -> Iterator[str]:
    """Yield the modules that a file of a package names in its imports, and names that may be modules in them."""
    try:
        nodes = [*ast.walk(ast.parse(content))]
    except (SyntaxError, ValueError):  # of compiled code; running what is broken says so
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), package or None)
            except ImportError:  # relative to no package
                continue
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _is_own(path: Path) -> bool:
    return not _INSTALLED.intersection(path.parts) and not path.is_relative_to(_STANDARD)
