"""The folder of node records: a file that says whose they are, and parts that are there as a whole or not at all."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.system import read_object, write_whole
from specdec.traces.tables import read_columns, read_note, write_table

RUN, PART = "run.json", "nodes-{:06d}.parquet"
_HASH = "sha256"
_MEND = f"delete {RUN}, and call record_nodes with the arguments of that run: it goes on with the parts"


@dataclass(frozen=True)
class Ended:
    """A finished request: its new ids, and why it ended."""

    tokens: list[int]
    finish_reason: str


class Parts:
    """The parts of one run. Every request stands in one part, with all its rows and with its output.

    Args:
        folder: made if it is absent; who writes to it holds it.
        run: what tells this run from others, JSON values; None: whatever run the folder has.

    Raises:
        ValueError: the folder belongs to another run, the message has what differs; a request stands in two parts; the
            folder has no records; a file is damaged, with what to do.

    Guarantee: a part is a file that is replaced as a whole, and nothing but these files says what is done. So a kill at
        any moment leaves parts that can be read, and a request is in one of them or is decoded again.
    """

    def __init__(self, folder: Path, run: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        if run is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self.run = self._claim(run)
        self.ended: dict[int, Ended] = {}
        for path in self._paths():
            self._take_in(path)

    def _claim(self, run: Mapping[str, Any] | None) -> dict[str, Any]:
        path = self.folder / RUN
        if not path.exists():
            if run is None:
                raise ValueError(f"{self.folder} has no node records: {RUN} is not there")
            write_whole(path, json.dumps({**run, _HASH: _hash_of(run)}, indent=1) + "\n")
        stored = read_object(path, ("rule", "num_requests"), _MEND)
        if stored.pop(_HASH, None) not in (None, _hash_of(stored)):  # earlier versions wrote none
            raise ValueError(f"{path} is damaged: its hash is not that of what it says; {_MEND}")
        differing = [f"{k}: {stored.get(k)!r}, not {v!r}" for k, v in (run or {}).items() if stored.get(k) != v]
        if differing:
            raise ValueError(f"{self.folder} holds another run ({'; '.join(differing)}): give another folder")
        return stored

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("nodes-*.parquet"))

    def _take_in(self, path: Path) -> None:
        """Learn which requests a part has."""
        fix = f"delete {path}, and call record_nodes again"
        ended = read_note(path).get("ended")
        if ended is None:
            raise ValueError(f"{path} is no part of node records: its note has no 'ended'; {fix}")
        for request, tokens, reason in ended:
            if request in self.ended:
                raise ValueError(f"request {request} stands in {path} and in another part; {fix}")
            self.ended[request] = Ended(tokens, reason)

    def append(self, columns: Mapping[str, Any], ended: Mapping[int, Ended]) -> None:
        """Write the rows and outputs of one or more requests as a new part.

        Cost: a compressed file and two waits for the disk.
        """
        note = {"ended": [(request, one.tokens, one.finish_reason) for request, one in ended.items()]}
        write_table(self.folder / PART.format(min(ended)), columns, note)
        self.ended |= ended

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the rows of all parts by request, step and depth of the record, as arrays."""
        tables = [read_columns(path) for path in self._paths()]
        names = dict.fromkeys(name for table in tables for name in table)
        # A part whose requests emitted nothing has no rows, and its columns have no types.
        some = [table for table in tables if len(table["request"])] or tables[:1]
        columns = {name: np.concatenate([np.asarray(table[name]) for table in some]) for name in names}
        order = np.lexsort((columns["step"], columns["request"])) if columns else np.zeros(0, dtype=np.int64)
        return {name: values[order] for name, values in columns.items()}


def _hash_of(run: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
