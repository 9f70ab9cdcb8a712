"""The trace of a run: what every step reported, as columns with one row per request and step."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import KIND, Ending, IntArray, StepInfo

Array = NDArray[Any]

PHASES = ("propose", "score", "verify", "commit")


def _of_kind(*kinds: str) -> tuple[str, ...]:
    """Return the fields of ``StepInfo`` of some kinds, in their order."""
    return tuple(f.name for f in fields(StepInfo) if f.metadata.get(KIND) in kinds)


_NUMBERS, _LISTS, _SOURCES = _of_kind("number"), _of_kind("list", "sources"), _of_kind("sources")
_OPTIONAL = tuple(f.name for f in fields(StepInfo) if f.metadata.get("optional"))
_LENGTHS = {f.name: f.metadata["length"] for f in fields(StepInfo) if "length" in f.metadata}


def stacked(parts: Sequence[Array], fill: float, empty: type) -> Array:
    """Return matrices ``[B_i, W_i]`` stacked to ``[sum B, max W]``, filled up on the right."""
    if not parts:
        return np.zeros((0, 0), dtype=empty)
    height, width = (sum(part.shape[0] for part in parts), max(part.shape[1] for part in parts))
    whole, first = np.full((height, width), fill, dtype=np.result_type(*{part.dtype for part in parts})), 0
    for part in parts:
        whole[first : first + part.shape[0], : part.shape[1]] = part
        first += part.shape[0]
    return whole


def _sources(infos: Sequence[StepInfo]) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return the ``_SOURCES`` of all steps as indices into one list of names, and that list."""
    names = tuple(dict.fromkeys(name for info in infos for name in info.source_names))
    codes = [np.asarray([*(names.index(name) for name in info.source_names), -1], dtype=np.int64) for info in infos]
    # -1 picks the last entry of a code, -1.
    columns = {
        field: stacked([code[getattr(info, field)] for code, info in zip(codes, infos, strict=True)], -1, np.int64)
        for field in _SOURCES
    }
    return columns, names


@dataclass(frozen=True)
class Trace:
    """All steps of a run as arrays of equal length, in the order of the steps.

    Attributes:
        columns: name -> ``[S]``; those of ``StepInfo`` that have one number a row, and ``step`` (index of the step in
            the run), ``request``, ``num_rows`` and ``num_nodes`` (rows and width of the scoring call) and
            ``seconds_<phase>``, the row's equal share of the step's time, so that sums over rows are sums of time.
        lists: name -> ``[S, W]``, those of ``StepInfo`` that have a list a row, -1 beyond its length (sources of nodes
            have an entry a node, -1 also in between); ``logprobs`` only if they were asked for, NaN beyond.
        source_names: the names that sources are indices into.
        steps: one row per step: ``num_nodes`` and the longest ``draft_depth`` of its rows.
    """

    columns: dict[str, Array]
    lists: dict[str, Array]
    source_names: tuple[str, ...]
    steps: dict[str, IntArray]

    @staticmethod
    def of(infos: Sequence[StepInfo]) -> "Trace":
        """Return the trace of some steps. Cost: O(rows x width), without a loop over rows."""
        rows = np.asarray([len(info.requests) for info in infos], dtype=np.int64)
        nodes = np.asarray([info.num_nodes for info in infos], dtype=np.int64)
        depth = np.asarray([info.draft_depth.max(initial=0) for info in infos], dtype=np.int64)
        none = np.zeros(0, dtype=np.int64)
        columns: dict[str, Array] = {"step": np.repeat(np.arange(len(infos)), rows)}
        columns["request"] = np.concatenate([none, *(info.requests for info in infos)])
        for name in _NUMBERS:
            columns[name] = np.concatenate([getattr(info, name) for info in infos]) if infos else none
        columns |= {"num_rows": np.repeat(rows, rows), "num_nodes": np.repeat(nodes, rows)}
        for phase in PHASES:
            seconds = np.asarray([info.seconds.get(phase, 0.0) for info in infos], dtype=np.float64)
            columns[f"seconds_{phase}"] = np.repeat(seconds / np.maximum(rows, 1), rows)
        sources, names = _sources(infos)
        lists: dict[str, Array] = {}
        for name in _LISTS:
            given = [part for part in (getattr(info, name) for info in infos) if part is not None]
            if name in sources:
                lists[name] = sources[name]
            elif name not in _OPTIONAL or (infos and len(given) == len(infos)):
                lists[name] = stacked(given, np.nan if name in _OPTIONAL else -1, np.int64)
        return Trace(columns, lists, names, {"num_nodes": nodes, "draft_depth": depth})


class Records(Sequence[dict[str, Any]]):
    """One row per request and step: a sequence of dicts over columns that stay columns.

    ``columns()`` is what ``datasets.Dataset.from_dict`` takes.
    """

    def __init__(self, infos: Sequence[StepInfo]) -> None:
        self._infos = infos

    @cached_property
    def _columns(self) -> dict[str, list[Any]]:
        trace = Trace.of(self._infos)
        columns = {name: values.tolist() for name, values in trace.columns.items()}
        columns["truncated_by"] = [Ending(code).word for code in columns["truncated_by"]]
        for name, values in trace.lists.items():
            if name in _SOURCES:
                columns[name] = [[trace.source_names[i] for i in row if i >= 0] for row in values.tolist()]
            else:
                length = columns[_LENGTHS[name]]
                columns[name] = [row[:n] for row, n in zip(values.tolist(), length, strict=True)]
        return columns

    def columns(self) -> dict[str, list[Any]]:
        """Return name -> values; lists are cut to their row's length and causes and sources are spelled out.

        Cost: O(rows x steps x width) Python objects, made once.
        """
        return dict(self._columns)

    def __len__(self) -> int:
        return sum(len(info.requests) for info in self._infos)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        return {name: values[index] for name, values in self._columns.items()}
