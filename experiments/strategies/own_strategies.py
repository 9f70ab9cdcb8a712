"""Draft sources of one's own as strategies: FILE.py:NAME or MODULE:NAME in place of a strategy's name."""

import importlib
import importlib.util
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.strategies.strategy import Strategy
from specdec import DraftSource, Oracle
from specdec.contracts import check_source


def own_place(text: str) -> str:
    """Return where a source is to be found.

    Raises:
        ArgumentTypeError: it has another form, or there is no such file.
    """
    where, name = _parts(text)
    if not where or not name.isidentifier():
        raise ArgumentTypeError(f"{text}: a source of your own is FILE.py:NAME or MODULE:NAME")
    if _is_file(where) and not Path(where).is_file():
        raise ArgumentTypeError(f"{text}: there is no file {where}")
    return text


def own_strategy(place: str) -> Strategy:
    """Return the strategy of a source, or of a function that makes one for an oracle; it has no options.

    Building it raises ValueError if a module or name is absent, or names no source.
    """
    where, name = _parts(place)
    return Strategy(name, (), lambda settings, oracle: _source(where, name, oracle))


def own_files(names: Iterable[str]) -> list[str]:
    """Return the files among strategies' names; modules are known by name alone."""
    return [where for where, _ in map(_parts, names) if _is_file(where)]


def _parts(text: str) -> tuple[str, str]:
    where, _, name = text.rpartition(":")
    return where, name


def _is_file(where: str) -> bool:
    return where.endswith(".py")


def _source(where: str, name: str, oracle: Oracle) -> DraftSource:
    module, place = _module(where), f"{where}:{name}"
    if not hasattr(module, name):
        raise ValueError(f"{place}: there is no {name} in {where}")
    value = getattr(module, name)
    try:
        return _checked(value, place)
    except ValueError:
        if not callable(value):
            raise
    return _checked(value(oracle), f"what {place} makes")


def _module(where: str) -> ModuleType:
    """Return a module, or a file run as one; what lies beside the file can be imported there."""
    if not _is_file(where):
        if importlib.util.find_spec(where.partition(".")[0]) is None:
            raise ValueError(f"there is no module {where}; for a file, give FILE.py:NAME")
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


def _checked(value: Any, argument: str) -> DraftSource:
    check_source(value, argument)
    source: DraftSource = value
    return source
