"""Node records on the disk: a file that says whose they are, and parts that are there as a whole or not at all."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.system import read_object, write_whole
from specdec.traces.tables import read_columns, read_note, write_table

RUN, PART = "run.json", "nodes-{:06d}.parquet"
_HASH = "sha256"
# New ids of a request, and why it ended.
Ended = tuple[list[int], str]
_MEND = f"delete {RUN}, and call record_nodes with the arguments of that run: it goes on with the parts"


class NodeRecords:
    """Node records on the disk: what a run wrote, whole or not.

    They lie in parts. Every request is in one part, with all its rows and with its output.

    Args:
        folder: that ``record_nodes`` wrote to; a process that writes to it holds it.
        run: JSON values that tell the run that writes from others; the folder is made if it is absent. None: whatever
            run the folder has.

    Attributes:
        rule: by which the run judged.
        ended: a request that has ended -> its new ids, and why it ended.

    Raises:
        ValueError: the folder belongs to another run, the message has what differs; a request is in two parts; the
            folder has no records; a file is damaged, with what to do.

    Guarantee: a part is a file that is replaced as a whole, and nothing but these files says what is done. So a kill at
        any moment leaves parts that can be read, and a request is in one of them or is decoded again.
    """

    def __init__(self, folder: str | Path, run: Mapping[str, Any] | None = None) -> None:
        self._folder = Path(folder)
        if run is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        stored = self._claim(run)
        self.rule: str = stored["rule"]
        self._num_requests: int = stored["num_requests"]
        self.ended: dict[int, Ended] = {}
        for path in self._paths():
            self._take_in(path)

    @property
    def tokens(self) -> dict[int, list[int]]:
        """New ids of each request that has ended, by its index."""
        return {request: self.ended[request][0] for request in sorted(self.ended)}

    @property
    def finish_reasons(self) -> dict[int, str]:
        """Why each of them ended."""
        return {request: self.ended[request][1] for request in sorted(self.ended)}

    @property
    def complete(self) -> bool:
        """Whether all requests have ended."""
        return len(self.ended) == self._num_requests

    def _claim(self, run: Mapping[str, Any] | None) -> dict[str, Any]:
        path = self._folder / RUN
        if not path.exists():
            if run is None:
                raise ValueError(f"{self._folder} has no node records: {RUN} is not there")
            write_whole(path, json.dumps({**run, _HASH: _hash_of(run)}, indent=1) + "\n")
        stored = read_object(path, ("rule", "num_requests"), _MEND)
        if stored.pop(_HASH, None) not in (None, _hash_of(stored)):  # earlier versions wrote none
            raise ValueError(f"{path} is damaged: its hash is not that of what it says; {_MEND}")
        differing = [f"{k}: {stored.get(k)!r}, not {v!r}" for k, v in (run or {}).items() if stored.get(k) != v]
        if differing:
            raise ValueError(f"{self._folder} holds another run ({'; '.join(differing)}): give another folder")
        return stored

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("nodes-*.parquet"))

    def _take_in(self, path: Path) -> None:
        """Learn which requests a part has."""
        fix = f"delete {path}, and call record_nodes again"
        ended = read_note(path).get("ended")
        if ended is None:
            raise ValueError(f"{path} is no part of node records: its note has no 'ended'; {fix}")
        for request, tokens, reason in ended:
            if request in self.ended:
                raise ValueError(f"request {request} stands in {path} and in another part; {fix}")
            self.ended[request] = tokens, reason

    def append(self, columns: Mapping[str, Any], ended: Mapping[int, Ended]) -> None:
        """Write the rows and outputs of one or more requests as a new part.

        Cost: a compressed file and two waits for the disk.
        """
        note = {"ended": [(request, *one) for request, one in ended.items()]}
        write_table(self._folder / PART.format(min(ended)), columns, note)
        self.ended |= ended

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return name -> ``[R]`` of all rows, by request and step, nodes in their order, the drawn token last.

        - ``request``, ``step`` (counted by each request for itself), ``num_committed`` when the step began;
        - ``node``: its index in the draft, -1 for the token that the verdict drew; ``parent`` (-1: the pending token),
          ``depth`` from 1 on, ``rank`` among verified siblings from 0 (-1: scouts and drawn tokens);
        - ``kind``: "draft", "scout", "recovered" or "bonus"; ``source``: who proposed it, None for drawn tokens;
        - ``token``; ``q`` and ``p``: its probability under the law that it was drawn from (1 for a point mass, NaN for
          drawn tokens) and under the target's warped law (0 or 1 at temperature 0); ``confidence``, NaN if none;
        - ``accepted``: by the verdict; ``emitted``: stands in the output;
        - ``logprob``, if asked for: under the target's warped law, at temperature 0 the unwarped one;
        - ``seconds_<phase>``: an equal share of the step's time, so that sums over rows are sums of time; without what
          recording took.

        The tokens that a step drew but did not emit, because an ending came before, have no row.
        """
        tables = [read_columns(path) for path in self._paths()]
        names = dict.fromkeys(name for table in tables for name in table)
        # A part whose requests emitted nothing has no rows, and its columns have no types.
        some = [table for table in tables if len(table["request"])] or tables[:1]
        columns = {name: np.concatenate([np.asarray(table[name]) for table in some]) for name in names}
        order = np.lexsort((columns["step"], columns["request"])) if columns else np.zeros(0, dtype=np.int64)
        return {name: values[order] for name, values in columns.items()}


def _hash_of(run: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
