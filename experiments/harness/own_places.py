"""What a user's own file or module holds, by its place: FILE.py:NAME or MODULE:NAME."""

import importlib
import importlib.util
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any


def own_place(text: str) -> str:
    """Return a place.

    Raises:
        ArgumentTypeError: it has another form, or there is no such file.
    """
    where, name = _parts(text)
    if not where or not name.isidentifier():
        raise ArgumentTypeError(f"{text}: what is your own is FILE.py:NAME or MODULE:NAME")
    if _is_file(where) and not Path(where).is_file():
        raise ArgumentTypeError(f"{text}: there is no file {where}")
    return text


def own_name(place: str) -> str:
    """Return the name at a place."""
    return _parts(place)[1]


def own_files(texts: Iterable[str]) -> list[str]:
    """Return the files of those texts that are places, also of modules."""
    places = [where for where, _ in map(_parts, texts) if where]
    return [where if _is_file(where) else _file_of(where) for where in places]


def load_own(place: str) -> Any:
    """Return what is at a place; a file is run, once.

    Raises:
        ValueError: there is no such module, or no such name in it.
    """
    where, name = _parts(place)
    module = _module(where)
    if not hasattr(module, name):
        raise ValueError(f"{place}: there is no {name} in {where}")
    return getattr(module, name)


def _parts(text: str) -> tuple[str, str]:
    where, _, name = text.rpartition(":")
    return where, name


def _is_file(where: str) -> bool:
    return where.endswith(".py")


def _file_of(module: str) -> str:
    """Return the file of a module; "" if it has none, or cannot be found."""
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        return ""
    return "" if spec is None or spec.origin is None else spec.origin


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
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module
