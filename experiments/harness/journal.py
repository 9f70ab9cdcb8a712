"""An append-only file of finished units, from which an interrupted experiment goes on."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from exactspec.parser import command
from specdec.prompts import NamedPrompt
from specdec.system import hold, holder, write_whole

JOURNAL = "journal.jsonl"
# What it is called once its experiment is complete.
UNITS = "units.jsonl"
# The command line of an experiment that has not ended.
COMMAND = "command"


@dataclass(frozen=True)
class Piece:
    """What is measured as one, and kept as one line of a journal.

    Attributes:
        index: its place there.
        kind: its name, or that of its kind.
        prompts: of its own, if it has some.
        problem: why it cannot be measured; None: it can.
    """

    index: int
    kind: str
    prompts: tuple[NamedPrompt, ...] = field(default=(), kw_only=True, repr=False)
    problem: str | None = field(default=None, kw_only=True)

    def entry(self, error: str | None = None) -> dict[str, Any]:
        """Return what a journal keeps of it in any case; ``error``: of one that was not measured."""
        named = {"prompts": [prompt.name for prompt in self.prompts]} if self.prompts else {}
        return {"unit": self.index, "kind": self.kind, **named, "error": error}


AnyPiece = TypeVar("AnyPiece", bound=Piece)


class Journal:
    """Finished units of one experiment, one JSON object a line.

    Args:
        path: of the file, in a folder that exists; its entries are read. A last line that an interruption cut off is
            dropped. If there are no entries there need be no file.
        fresh: start empty.
        way: what goes on with it after an interruption; None: the command of this process.

    Raises:
        ValueError: a line before the last one is broken; with file and line.

    Guarantee: a unit that ``append`` took is on the disk. A kill or a full disk costs at most the unit being appended:
        the file is never rewritten in place.
    """

    def __init__(self, path: Path, fresh: bool = False, way: str | None = None) -> None:
        self.path, self._way = path, way
        if fresh:
            path.unlink(missing_ok=True)
        self.entries: dict[int, dict[str, Any]] = {}
        if path.exists():
            self.entries = {entry["unit"]: entry for entry in read_entries(path)}
            write_whole(path, "".join(map(_line, self.entries.values())))

    def is_done(self, unit: int) -> bool:
        """Whether a unit was measured; one that failed is tried again."""
        return unit in self.entries and self.entries[unit]["error"] is None

    def append(self, entry: dict[str, Any]) -> None:
        """Write one unit (``unit``: its index, ``error``: None or a message) and see it to the disk.

        With the first one, the file ``COMMAND`` is written: the command that goes on after an interruption.
        """
        is_first = not self.entries
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(entry))
            file.flush()
            os.fsync(file.fileno())
        self.entries[entry["unit"]] = entry
        if is_first:
            way = self._way or command_line(command() or sys.argv[0], sys.argv[1:])
            write_whole(self.path.with_name(COMMAND), f"{way}\n")

    def close(self) -> Path:
        """Rename the file: the experiment is complete, and the next run with these arguments starts anew."""
        self.path.with_name(COMMAND).unlink(missing_ok=True)
        return self.path.replace(self.path.with_name(UNITS))


def command_line(program: str, words: Sequence[str]) -> str:
    """Return the command that goes on with an experiment, without --fresh, which would drop what was measured."""
    return f"{program} {shlex.join(word for word in words if word != '--fresh')}"


@contextmanager
def hold_journal(folder: Path, fresh: bool, way: str | None = None) -> Iterator[Journal]:
    """Hold a folder of results until the block ends.

    stderr says if the folder holds a finished experiment, and which experiments beside it were interrupted.

    Args:
        folder: it is made if it is absent; see ``specdec.system.hold``.
        fresh: start with an empty journal.
        way: see ``Journal``.

    Returns:
        The folder's journal.

    Raises:
        ValueError: see ``specdec.system.hold`` and ``Journal``.
    """
    with hold(folder, "--out"):
        for other in find_open_results(folder.parent):
            if other != folder:
                print(_interruption_note(other), file=sys.stderr)
        if (folder / UNITS).exists():
            print(f"{folder} holds a finished run of these arguments; this one replaces it at its end", file=sys.stderr)
        yield Journal(folder / JOURNAL, fresh, way)


def find_open_results(parent: Path) -> list[Path]:
    """Return the folders of results in a folder whose experiment has not ended and is not running."""
    return sorted(path.parent for path in parent.glob(f"*/{JOURNAL}") if holder(path.parent) is None)


def _interruption_note(folder: Path) -> str:
    """Return what a user should know about an interrupted experiment."""
    try:
        way = (folder / COMMAND).read_text(encoding="utf-8").strip()
    except OSError:  # killed before it was written, or not to be read
        way = "the command that began it"
    return f"unfinished: {folder}; to go on: {way}; to forget it, delete the folder"


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry) + "\n"


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a file, in order, without a broken last one; the file stays as it is.

    Raises:
        ValueError: a line before the last one is broken; with file and line.
    """
    lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    entries = []
    for number, line in enumerate(lines, start=1):
        entry = _entry(line)
        if entry is not None:
            entries.append(entry)
        elif number < len(lines):
            raise ValueError(f"{path}, line {number}: broken; mend the line, or start afresh with --fresh")
    return entries


def _entry(line: bytes) -> dict[str, Any] | None:
    """Return the entry on a line; None if it is broken."""
    try:
        entry = json.loads(line.decode())
    except ValueError:
        return None
    whole = isinstance(entry, dict) and type(entry.get("unit")) is int and "error" in entry
    return entry if whole else None
