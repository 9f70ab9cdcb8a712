"""What was measured, kept in a file after every arm: an interrupted run goes on where it stopped."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Found = dict[str, Any]
FIGURES = "results.json"


class Results:
    """Figures of arms at batch sizes, by the part of the study that measured them.

    Args:
        folder: for the files; made if it is not there.
        arguments: what the figures depend on.
        commit: of the program; every figure bears that of the program that measured it.

    Raises:
        ValueError: the folder holds figures of other arguments.
    """

    def __init__(self, folder: Path, arguments: Mapping[str, Any], commit: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._commit, self._path = commit, folder / FIGURES
        self._all: Found = {"arguments": dict(arguments), "provenance": {}, "measured": {}}
        if self._path.exists():
            held = json.loads(self._path.read_text(encoding="utf-8"))
            differ = [name for name, value in arguments.items() if held["arguments"].get(name) != value]
            if differ:
                changed = ", ".join(f"{name} was {held['arguments'].get(name)!r}" for name in differ)
                raise ValueError(
                    f"--out: {folder} holds figures of other arguments ({changed}); give another folder, or --fresh"
                )
            self._all = held

    def get(self, part: str, batch: int, arm: str) -> Found | None:
        """Return what a part has measured of an arm; None if it has not."""
        found: Found | None = self._all["measured"].get(f"{part}, batch {batch}", {}).get(arm)
        return found

    def lacking(self, part: str, batch: int, arms: Iterable[str]) -> list[str]:
        """Return those arms that a part has not measured, or that failed in it."""
        return [arm for arm in arms if "failed" in (self.get(part, batch, arm) or {"failed": ""})]

    def put(self, part: str, batch: int, found: Mapping[str, Found]) -> None:
        """Keep what a part has measured of some arms."""
        signed = {arm: {**figures, "commit": self._commit} for arm, figures in found.items()}
        self._all["measured"].setdefault(f"{part}, batch {batch}", {}).update(signed)
        self._write()

    @property
    def commits(self) -> list[str]:
        """The commits of the programs that measured the figures, in alphabetical order."""
        return sorted({str(found["commit"]) for arms in self._all["measured"].values() for found in arms.values()})

    def sign(self, provenance: Mapping[str, Any]) -> None:
        """Note where and by what the figures were measured last."""
        self._all["provenance"] = dict(provenance)
        self._write()

    def _write(self) -> None:
        """Replace the file by a whole one."""
        fresh = self._path.with_suffix(".fresh")
        fresh.write_text(json.dumps(self._all, indent=1), encoding="utf-8")
        os.replace(fresh, self._path)
