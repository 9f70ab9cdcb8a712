"""Dense records: what a source drafts at every position of an output, so that any step may begin anywhere."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from specdec.contracts import FloatArray, IntArray
from specdec.traces.tables import read_columns, read_note, write_table

Path_ = tuple[int, ...]


@dataclass(frozen=True)
class DenseRecords:
    """Drafts at every position of some outputs; request r's positions are rows ``starts[r]`` to ``starts[r + 1]``.

    Attributes:
        outputs: new ids of each request.
        prompt_lengths: ids before them.
        tokens, parents: ``[P, N]`` of the draft before each output token, parents -1 for the pending token.
        counts: ``[P]`` nodes; a budget or the source ended some early.
        paths: the nodes of a whole draft, as the ranks of the siblings on their paths.
        exactness: of the run: "exact" or "exact up to numerics".
        confidence: ``[P, N]`` of the nodes, 0 beyond; None: not recorded, or, if there are p and q, not the
            probabilities that tokens were drawn with.
        entropy: ``[P, N]`` in nats of the laws that chains' tokens were drawn from, 0 beyond; None: not recorded.
        is_chosen: whether all tokens were chosen as the likeliest, or copied; none was drawn.
        rule: by which a run judges.
        repeats: whether runs with drafts write these outputs: greedy and coupled ones do.
        p, q: ``[P]`` of each output token, under the target's law and under the law that a draft that begins there
            draws from; None: tokens were chosen, or outputs repeat.
        by_rank: ``[P, E, R]`` how likely each output token, if a step reaches it, was accepted as the sibling of each
            rank: E independent estimates, 1 if it is exact; None: no siblings were drawn, or there are no p and q.
    """

    outputs: list[list[int]]
    prompt_lengths: IntArray
    tokens: IntArray
    parents: IntArray
    counts: IntArray
    paths: tuple[Path_, ...]
    exactness: str
    confidence: FloatArray | None = None
    entropy: FloatArray | None = None
    is_chosen: bool = False
    rule: str = "standard"
    repeats: bool = True
    p: FloatArray | None = None
    q: FloatArray | None = None
    by_rank: FloatArray | None = None

    @cached_property
    def starts(self) -> IntArray:
        """``[R + 1]`` where the positions of each request's output begin."""
        return np.cumsum([0, *map(len, self.outputs)])

    @property
    def requests(self) -> IntArray:
        """``[P]`` the request of each position."""
        return np.repeat(np.arange(len(self.outputs)), np.diff(self.starts))

    @property
    def num_committed(self) -> IntArray:
        """``[P]`` how many ids stand before each position."""
        requests = self.requests
        committed: IntArray = self.prompt_lengths[requests] + np.arange(len(requests)) - self.starts[requests]
        return committed

    @property
    def ids(self) -> IntArray:
        """``[P]`` the ids of the outputs, one after the other."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *map(np.asarray, self.outputs)]).astype(np.int64)

    @property
    def is_chain(self) -> bool:
        """Whether no node of a whole draft has a sibling."""
        return all(path[-1] == 0 for path in self.paths)

    def places(self, at: int) -> dict[Path_, int]:
        """Return the nodes of the draft at a position by the ranks on the paths to them."""
        return places_of(self.parents[at, : self.counts[at]].tolist())

    def save(self, path: str | Path) -> None:
        """Write the records as one parquet file, a row for each position; the file is replaced as a whole."""
        columns: dict[str, Any] = {
            "request": self.requests,
            "output": self.ids,
            "count": self.counts,
        }
        values = {name: getattr(self, name) for name in _OF_NODES}
        columns |= {name: _cut(value, self.counts) for name, value in values.items() if value is not None}
        columns |= {name: getattr(self, name) for name in ("p", "q") if getattr(self, name) is not None}
        if self.by_rank is not None:
            columns["by_rank"] = self.by_rank.reshape(len(self.by_rank), -1).tolist()
        note = {name: getattr(self, name) for name in _NOTED} | {
            "prompt_lengths": self.prompt_lengths.tolist(),
            "by_rank": None if self.by_rank is None else self.by_rank.shape[1:],
            "given": [name for name, value in values.items() if value is not None],
        }
        write_table(Path(path), columns, note)

    @staticmethod
    def load(path: str | Path) -> "DenseRecords":
        """Return what ``save`` wrote.

        Raises:
            ValueError: the file holds something else.
        """
        note, columns = read_note(Path(path)), read_columns(Path(path))
        if "paths" not in note:
            raise ValueError(f"{path} holds no dense records")
        counts = np.asarray(columns["count"], dtype=np.int64)
        width = int(counts.max(initial=0))
        ranks = note.get("by_rank")
        given = {name: _pad(columns[name], width, _OF_NODES[name]) for name in note["given"]}
        if "by_rank" not in note and "p" in columns:
            given.pop("confidence", None)  # earlier versions did not check that tokens were drawn with it
        given |= {name: note[name] for name in _NOTED if name in note}  # earlier versions wrote fewer
        return DenseRecords(
            **{**given, "paths": tuple(map(tuple, note["paths"]))},
            prompt_lengths=np.asarray(note["prompt_lengths"], dtype=np.int64),
            counts=counts,
            p=columns.get("p"),
            q=columns.get("q"),
            by_rank=None if ranks is None else np.array(list(columns["by_rank"])).reshape(len(counts), *ranks),
        )


# Columns with an entry for each node, and what pads them; attributes that are written as they are.
_OF_NODES: dict[str, float] = {"tokens": 0, "parents": -1, "confidence": 0.0, "entropy": 0.0}
_NOTED = ("outputs", "paths", "exactness", "is_chosen", "rule", "repeats")


def _cut(values: Any, counts: IntArray) -> list[Any]:
    return [row[:count].tolist() for row, count in zip(values, counts, strict=True)]


def _pad(lists: Sequence[Sequence[Any]], width: int, fill: Any) -> Any:
    return np.array([[*row, *[fill] * (width - len(row))] for row in lists]).reshape(len(lists), width)


def places_of(parents: Sequence[int]) -> dict[Path_, int]:
    """Return the nodes of a tree by the ranks on the paths to them, from their parents, -1 for the pending token."""
    paths: list[Path_] = []
    num_children: Counter[int] = Counter()
    for parent in parents:
        paths.append((*(paths[parent] if parent >= 0 else ()), num_children[parent]))
        num_children[parent] += 1
    return {path: node for node, path in enumerate(paths)}
