"""Mutants of one line: a function of the running program with a part of its source replaced."""

import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

# Figure -> what was found, and what it should be.
Differences = dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class LineMutant:
    """A wrong line, and the statistic that tells.

    Attributes:
        function: a function, a method or a property.
        line: a part of its source that stands there once.
        wrong: what replaces it.
        statistic: returns the figures that are not as worked out by hand; none for the right program.
        figure: one that the mutant moves.
    """

    function: Any
    line: str
    wrong: str
    statistic: Callable[[], Differences]
    figure: str

    @property
    def name(self) -> str:
        function = plain_function(self.function)
        return f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}-{self.wrong.strip() or 'nothing'}"


def line_mutants(*rows: tuple[Any, str, str, Callable[[], Differences], str]) -> list[LineMutant]:
    """Return the mutants of a table, whose columns are the attributes of ``LineMutant``."""
    return [LineMutant(*row) for row in rows]


def plain_function(function: Any) -> Any:
    """Return the function itself, or the one that a property is made of."""
    return function.fget if isinstance(function, property) else function


def wrong_code(mutant: LineMutant) -> CodeType:
    """Return the code of the function with the line replaced; it takes the place of ``__code__``."""
    function = plain_function(mutant.function)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutant.line) == 1, f"{function.__qualname__} holds {mutant.line!r} {source.count(mutant.line)}x"
    module = compile(source.replace(mutant.line, mutant.wrong), inspect.getfile(function), "exec")
    codes = [code for code in module.co_consts if isinstance(code, CodeType) and code.co_name == function.__name__]
    (code,) = codes
    return code


def differences(found: Mapping[str, Any], expected: Mapping[str, Any], rel: float = 1e-9) -> Differences:
    """Return the figures that differ, or that only one side has."""
    names = dict.fromkeys([*found, *expected])
    pairs = {name: (found.get(name, "absent"), expected.get(name, "absent")) for name in names}
    return {name: pair for name, pair in pairs.items() if not _is_same(*pair, rel)}


def _is_same(found: Any, expected: Any, rel: float) -> bool:
    if isinstance(found, int | float) and isinstance(expected, int | float):
        return math.isclose(found, expected, rel_tol=rel, abs_tol=1e-300) or found == expected
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(_is_same, found, expected, [rel] * len(found)))
    return type(found) is type(expected) and bool(found == expected)


def together(**parts: Differences) -> Differences:
    """Return the differences of several tables, each figure with the name of its table before it."""
    return {f"{table}: {name}": pair for table, found in parts.items() for name, pair in found.items()}
