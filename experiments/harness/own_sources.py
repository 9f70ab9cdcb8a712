"""Draft sources of one's own as arms: each is found by the file or module that holds it, and its name there."""

import importlib
import importlib.util
import sys
from argparse import ArgumentTypeError
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from specdec import DraftSource, Oracle
from specdec.contracts import check_source

OPTION = "--source"


def own_place(text: str) -> str:
    """Return where a source is to be found, FILE.py:NAME or MODULE:NAME.

    Raises:
        ArgumentTypeError: it has another form, or there is no such file.
    """
    where, name = _parts(text)
    if not where or not name.isidentifier():
        raise ArgumentTypeError(f"expected FILE.py:NAME or MODULE:NAME, got {text!r}")
    if _is_file(where) and not Path(where).is_file():
        raise ArgumentTypeError(f"there is no file {where}")
    return text


def own_files(places: Sequence[str]) -> list[str]:
    """Return the files among the places of sources; modules are known by name alone."""
    return [where for where, _ in map(_parts, places) if _is_file(where)]


def own_sources(places: Sequence[str], oracle: Oracle, taken: Collection[str] = ()) -> dict[str, DraftSource]:
    """Return name -> source of some places.

    Args:
        places: where they are to be found.
        oracle: for which functions make their sources.
        taken: names of other arms.

    Raises:
        ValueError: a module or name is absent, it names no source, or a name is taken.
    """
    found: dict[str, DraftSource] = {}
    for place in places:
        where, name = _parts(place)
        if name in found or name in taken:
            raise ValueError(f"{OPTION} {place}: another arm is called {name}; give the source a name of its own")
        module = _module(where, place)
        if not hasattr(module, name):
            raise ValueError(f"{OPTION} {place}: {where} has no {name}")
        found[name] = _source(getattr(module, name), oracle, place)
    return found


def _parts(text: str) -> tuple[str, str]:
    where, _, name = text.rpartition(":")
    return where, name


def _is_file(where: str) -> bool:
    return where.endswith(".py")


def _module(where: str, place: str) -> ModuleType:
    """Return a module, or a file run as one; what lies beside the file can be imported there."""
    if not _is_file(where):
        if importlib.util.find_spec(where.partition(".")[0]) is None:
            raise ValueError(f"{OPTION} {place}: there is no module {where}; for a file, give FILE.py:NAME")
        return importlib.import_module(where)
    path = Path(where).resolve()
    if (known := sys.modules.get(str(path))) is not None:
        return known
    if (folder := str(path.parent)) not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(str(path), path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _source(value: object, oracle: Oracle, place: str) -> DraftSource:
    """Return a draft source, or what a function makes for an oracle."""
    try:
        return _checked(value, f"{OPTION} {place}")
    except ValueError:
        if not callable(value):
            raise
    return _checked(value(oracle), f"what {OPTION} {place} makes")


def _checked(value: Any, argument: str) -> DraftSource:
    check_source(value, argument)
    source: DraftSource = value
    return source
