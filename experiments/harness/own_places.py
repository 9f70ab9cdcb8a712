"""What a user's own file or module holds, by its place: FILE.py:NAME or MODULE:NAME, with values for what it makes.

``mine.py:ada:gamma=0.2,longest=8`` calls ``ada`` of ``mine.py`` with these values: literals of Python, or bare words.
"""

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from exactspec.listing import find_module

FORM = "FILE.py:NAME"
FORMS = f"{FORM} or {FORM}:KEY=VALUE,..."
_PLACE = re.compile(r"(?P<where>.+?\.py|[^:]+):(?P<name>[^\W\d]\w*)(:(?P<values>[^\W\d]\w*=.*))?")


def name_or_place(text: str, known: Collection[str], kind: str) -> str:
    """Return a name of ours, or a place.

    Args:
        text: of the command line.
        known: the names.
        kind: what they are of, in a word.

    Raises:
        ArgumentTypeError: it is neither, there is no such file, or its values cannot be read.
    """
    if text in known:
        return text
    if known and ":" not in text:
        raise ArgumentTypeError(f"there is no {kind} {text!r}: there are {', '.join([*known, FORM])}")
    if (found := _PLACE.fullmatch(text)) is None:
        raise ArgumentTypeError(f"{text}: what is your own is {FORM} or MODULE:NAME, with values {FORM}:KEY=VALUE,...")
    if is_file(where := found["where"]) and not Path(where).is_file():
        raise ArgumentTypeError(f"{text}: there is no file {where}")
    try:
        values_of(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return text


def own_place(text: str) -> str:
    """Return a place, where there are no names of ours; it raises as ``name_or_place`` does."""
    return name_or_place(text, (), "name")


def is_place(text: str) -> bool:
    """Tell whether a text has the form of a place, of a file or of a module."""
    found = _PLACE.match(text)
    return found is not None and (is_file(found["where"]) or all(map(str.isidentifier, found["where"].split("."))))


def where_of(place: str) -> str:
    """Return the file or the module of a place, or of a text that begins with one (FILE.py:NAME:4)."""
    found = _PLACE.match(place)
    assert found is not None, place
    return found["where"]


def own_name(place: str) -> str:
    """Return the name at a place, with the values."""
    return place[len(where_of(place)) + 1 :]


def values_of(place: str) -> dict[str, Any]:
    """Return the values of a place by name.

    Raises:
        ValueError: they cannot be read.
    """
    found = _PLACE.fullmatch(place)
    if found is None or found["values"] is None:
        return {}
    try:
        call = ast.parse(f"_({found['values']})", mode="eval").body
        assert isinstance(call, ast.Call)
        values = {word.arg or "": _value(word.value) for word in call.keywords}
        if call.args or "" in values:
            raise ValueError
    except (SyntaxError, ValueError, AssertionError) as error:
        told = "the values of a place are KEY=VALUE,KEY=VALUE: numbers, words or other literals of Python"
        raise ValueError(f"{place}: {told}") from error
    return values


def _value(written: ast.expr) -> Any:
    """Return what a literal says; a bare word is text."""
    return written.id if isinstance(written, ast.Name) else ast.literal_eval(written)


def check_names(arms: Sequence[str]) -> None:
    """Raise ValueError if two arms have one name, as what is a user's own may have."""
    if twice := [name for name in arms if arms.count(name) > 1]:
        raise ValueError(f"two arms are called {twice[0]}; give your own source another name")


def load_own(place: str) -> Any:
    """Return what is at a place; a file is run, once.

    Raises:
        ValueError: there is no such module, no such name in it, or it raises one; with the place.
    """
    where, name = where_of(place), own_name(place).partition(":")[0]
    module = told_at(place, lambda: _module(where))
    if not hasattr(module, name):
        raise ValueError(f"{place}: there is no {name} in {where}")
    return getattr(module, name)


def make_own(place: str) -> Any:
    """Return what is at a place; a class or a function is called with the values.

    Raises:
        ValueError: as of ``load_own`` and ``call_own``.
    """
    value = load_own(place)
    if isinstance(value, type) or inspect.isroutine(value):
        return call_own(place, value)
    if values_of(place):
        raise ValueError(f"{place}: there are values, and no class or function that takes them")
    return value


def call_own(place: str, function: Callable[..., Any], *first: Any, **offered: Any) -> Any:
    """Return what a function at a place makes.

    Args:
        place: has the values that it is called with.
        function: see above.
        first: what it is called with before them.
        offered: what it is called with too, if it has parameters of these names.

    Raises:
        ValueError: it has other parameters, or raises one; with the place.
    """

    def make() -> Any:
        signature = inspect.signature(function)
        taken = {name: value for name, value in offered.items() if name in signature.parameters}
        values = values_of(place)
        if twice := taken.keys() & values.keys():
            raise ValueError(f"the program itself gives {', '.join(sorted(twice))}: leave it out")
        try:
            signature.bind(*first, **taken, **values)
        except TypeError as error:
            raise ValueError(str(error)) from error
        return function(*first, **taken, **values)

    return told_at(place, make)


def told_at(place: str, do: Callable[[], Any]) -> Any:
    """Return what a function returns; a ValueError that it raises is told with the place."""
    try:
        return do()
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def is_file(where: str) -> bool:
    """Tell whether the first part of a place names a file."""
    return where.endswith(".py")


def reach(wheres: Iterable[str]) -> None:
    """Let what lies beside these files, and modules of the working folder, be imported, after all that can be now."""
    folders = [os.getcwd(), *(str(Path(where).resolve().parent) for where in wheres if is_file(where))]
    sys.path += [folder for folder in dict.fromkeys(folders) if folder not in sys.path]


def _module(where: str) -> ModuleType:
    """Return a module, or a file run as one."""
    reach([where])
    if not is_file(where):
        if find_module(where) is None:
            raise ValueError(f"there is no module {where}; for a file, give {FORM}")
        return importlib.import_module(where)
    if not (path := Path(where).resolve()).is_file():
        raise ValueError(f"there is no file {where}")
    if (known := sys.modules.get(str(path))) is not None:
        return known
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
