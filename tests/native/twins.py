"""Native twins of the mutants: the sources with one line changed, compiled."""

import ctypes
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specdec.kernels.compiled.build import Unit, build, compiler
from specdec.kernels.compiled.machine import target_flag

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
    kill: Callable[[], None]


def changed(unit: Unit, twin: Twin, folder: Path) -> ctypes.CDLL:
    """Return the library of a unit with a twin's line."""
    home = unit.source.parent
    sources = shutil.copytree(home, folder / "sources", ignore=shutil.ignore_patterns("__pycache__"))
    text = (sources / twin.file).read_text(encoding="utf-8")
    assert text.count(twin.line) == 1, "the line is gone, or stands twice"
    (sources / twin.file).write_text(text.replace(twin.line, twin.changed), encoding="utf-8")
    shared = tuple(headers for headers in unit.headers if headers != home)
    mutant = Unit("a twin", sources / unit.source.name, (*shared, sources))
    return ctypes.CDLL(str(build(mutant, folder, compiler(), (*FLAGS, target_flag()))))
