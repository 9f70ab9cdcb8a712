"""What a user's own file or module holds, by its place: FILE.py:NAME or MODULE:NAME."""

import importlib
import importlib.util
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Collection, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from exactspec.listing import find_module

_PLACE = re.compile(r"(.+):([^\W\d]\w*)")


def name_or_place(text: str, known: Collection[str], kind: str) -> str:
    """Return a name of ours, or a place.

    Args:
        text: of the command line.
        known: the names.
        kind: what they are of, in a word.

    Raises:
        ArgumentTypeError: it is neither, or there is no such file.
    """
    if text in known:
        return text
    if ":" not in text:
        raise ArgumentTypeError(f"there is no {kind} {text!r}: there are {', '.join(known)}, and FILE.py:NAME")
    if (found := _PLACE.fullmatch(text)) is None:
        raise ArgumentTypeError(f"{text}: what is your own is FILE.py:NAME or MODULE:NAME")
    if _is_file(where := found[1]) and not Path(where).is_file():
        raise ArgumentTypeError(f"{text}: there is no file {where}")
    return text


def own_name(place: str) -> str:
    """Return the name at a place."""
    return _parts(place)[1]


def own_files(texts: Iterable[str]) -> list[str]:
    """Return the files of those texts that are places, or begin with one (FILE.py:NAME:4), also of modules."""
    files = []
    for where in (found[1] for text in texts if (found := _PLACE.match(text)) is not None):
        if _is_file(where):
            files.append(where)
        elif (spec := find_module(where)) is not None and spec.origin is not None:
            files.append(spec.origin)
    return files


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


def _module(where: str) -> ModuleType:
    """Return a module, or a file run as one; what lies beside the file can be imported there."""
    if not _is_file(where):
        if find_module(where) is None:
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
