"""An append-only file of finished units, so that an interrupted experiment goes on where it was."""

import json
from pathlib import Path
from typing import Any


class Journal:
    """Finished units of one experiment, one JSON object a line.

    Args:
        path: of the file; what it holds is read, and a line that an interruption cut off is dropped.
        fresh: start empty.
    """

    def __init__(self, path: Path, fresh: bool = False) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n") if path.exists() else ("", "", "")
        self.entries: dict[int, dict[str, Any]] = {}
        for line in whole.splitlines():
            entry = json.loads(line)
            self.entries[entry["unit"]] = entry
        path.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries.values()), encoding="utf-8")

    def is_done(self, unit: int) -> bool:
        """Whether a unit was measured; one that failed is tried again."""
        return unit in self.entries and self.entries[unit]["error"] is None

    def append(self, entry: dict[str, Any]) -> None:
        """Write one unit (``unit``: its index, ``error``: None or a message) and see it to the disk."""
        self.entries[entry["unit"]] = entry
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()

    def close(self, name: str) -> Path:
        """Rename the file: the experiment is complete, and the next one with these arguments measures afresh."""
        return self.path.replace(self.path.with_name(name))
