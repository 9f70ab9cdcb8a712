"""Native twins of the mutants: the sources with one line changed, compiled."""

import ctypes
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specdec.kernels.compiled.build import LibrarySources, build, compiler, target_flag

# Cheap to compile; small models need no speed.
FLAGS = ("-std=c++17", "-O0", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off")


@dataclass(frozen=True)
class Twin:
    """One change of the sources, and what it is killed by."""

    pitfall: str
    name: str
    file: str
    line: str
    changed: str
    kill: Callable[[], Any]


def twins(unit: LibrarySources, patches: str, kills: Mapping[str, Any]) -> list[Twin]:
    """Return the twins of a text: "pitfall name (file, kill)", then the line after "- " and its change after "+ ".

    A line that is gone from the sources, or stands twice, is told as soon as the tests are collected.

    Args:
        unit: whose sources hold the lines.
        patches: a line may be several; without a "+ " it is left out.
        kills: by the name that stands in the text.
    """
    found = []
    for head, body in re.findall(r"^(?![-+] )(.+)\n((?:[-+] .*\n)+)", patches, re.MULTILINE):
        pitfall, name, file, kill = re.fullmatch(r"(\w+) (.+) \((\S+), (\w+)\)", head).groups()
        line, wrong = ("\n".join(re.findall(rf"^[{sign}] (.*)$", body, re.MULTILINE)) for sign in "-+")
        text = (unit.source.parent / file).read_text(encoding="utf-8")
        assert text.count(line) == 1, f"{file} has {line!r} {text.count(line)} times: mend the twin {name!r}"
        found.append(Twin(pitfall, name, file, line, wrong, kills[kill]))
    assert len(found) == len(re.findall(r"^(?![-+] ).+", patches, re.MULTILINE)), "a head without a line is no twin"
    return found


def long_but_first(twins: Sequence[Twin], *told: Sequence[Any]) -> list[Any]:
    """Return the parameters of a test: each twin, and its entry in every further column.

    The quick suite has the first twin alone: if tests no longer reach the kernels that are put in place, it tells.
    """
    return [
        pytest.param(twin, *more, id=f"{twin.pitfall} {twin.name}", marks=() if twin is twins[0] else pytest.mark.long)
        for twin, *more in zip(twins, *told, strict=True)
    ]


def changed(unit: LibrarySources, twin: Twin, folder: Path) -> ctypes.CDLL:
    """Return the library of a unit with a twin's line."""
    home = unit.source.parent
    sources = shutil.copytree(home, folder / "sources", ignore=shutil.ignore_patterns("__pycache__"))
    text = (sources / twin.file).read_text(encoding="utf-8")
    (sources / twin.file).write_text(text.replace(twin.line, twin.changed), encoding="utf-8")
    shared = tuple(headers for headers in unit.headers if headers != home)
    mutant = LibrarySources("a twin", sources / unit.source.name, (*shared, sources))
    return ctypes.CDLL(str(build(mutant, folder, compiler(), (*FLAGS, target_flag()))))
