"""The file of hashes that are committed, and how two lists of hashes differ."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.golden.cases import CASES, Case
from tests.golden.running import PARTS, lines

FILE = Path(__file__).with_name("hashes.json")
LEGEND = "world/source/rule/batch/sampling"


def portable(found: Mapping[str, str]) -> dict[str, str]:
    """Return hashes without those of the bits of log-probabilities, which another machine need not have."""
    return {name: line.rpartition(" ")[0] for name, line in found.items()}


def read() -> dict[str, str]:
    """Return the hashes that are committed, by the names of cases."""
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    kept.pop(LEGEND)
    return {f"{group}/{case}": line for group, cases in kept.items() for case, line in cases.items()}


def write(found: Mapping[str, str]) -> None:
    """Replace the committed hashes: a line a case, under its world, source and rule."""
    _save(portable(found))


def add(found: Mapping[str, str]) -> None:
    """Put hashes of cases that the file lacks beside those that it has, which stay as they are, in the cases' order."""
    whole = portable(found) | read()
    known = [str(case) for case in CASES if str(case) in whole]
    _save({name: whole[name] for name in known})


def _save(found: Mapping[str, str]) -> None:
    """Write hashes, as they are, to the file."""
    grouped: dict[str, Any] = {LEGEND: " ".join(PARTS[:-1])}
    for name, line in found.items():
        group, batch, sampling = name.rsplit("/", 2)
        grouped.setdefault(group, {})[f"{batch}/{sampling}"] = line
    text = json.dumps(grouped, indent=0)
    FILE.write_text(text + "\n", encoding="utf-8")


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return a line for each case that has other hashes, with the parts that differ, or that only one side has."""
    told = []
    for name in dict.fromkeys([*wanted, *found]):
        sides = wanted.get(name), found.get(name)
        if None in sides:
            told.append(f"{name}: {'new' if sides[0] is None else 'gone'}")
        elif sides[0] != sides[1]:
            parts = zip(PARTS, *(side.split() for side in sides), strict=False)
            told.append(f"{name}: other " + ", ".join(part for part, one, other in parts if one != other))
    return told


def changes(cases: Iterable[Case]) -> list[str]:
    """Return how cases, run by the native pass, differ from the committed hashes."""
    found, kept = portable(lines(cases, "native")), read()
    return differences({name: kept[name] for name in found if name in kept}, found)


def gaps() -> list[str]:
    """Return the cases that the file lacks, and those of the file that are no cases."""
    names = {str(case): "" for case in CASES}
    return differences(dict.fromkeys(read(), ""), names)
