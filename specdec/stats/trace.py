"""The trace of a run: what every step reported, as columns with one row per request and step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import IntArray, StepInfo

Array = NDArray[Any]

PHASES = ("propose", "score", "verify", "commit")
TRUNCATIONS = ("none", "eos", "stop")  # what the codes of StepInfo.truncated_by mean
_SCALARS = (
    "num_committed",
    "num_drafted",
    "num_scouts",
    "draft_depth",
    "num_accepted",
    "num_emitted",
    "truncated_by",
    "stopped_at_leaf",
    "shortened",
    "num_children_at_stop",
)


def _padded(parts: Sequence[Array], fill: float, empty: type) -> Array:
    """Return matrices ``[B_i, W_i]`` stacked to ``[sum B, max W]``, filled up on the right."""
    width = max((part.shape[1] for part in parts), default=0)
    wide = [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=fill) for part in parts]
    return np.concatenate(wide) if wide else np.zeros((0, 0), dtype=empty)


_SOURCES = ("path_sources", "node_sources", "tried_sources")


def _sources(infos: Sequence[StepInfo]) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return the ``_SOURCES`` of all steps as indices into one list of names, and that list."""
    names = tuple(dict.fromkeys(name for info in infos for name in info.source_names))
    codes = [np.asarray([*(names.index(name) for name in info.source_names), -1], dtype=np.int64) for info in infos]
    # -1 picks the last entry of a code, -1.
    columns = {
        field: _padded([code[getattr(info, field)] for code, info in zip(codes, infos, strict=True)], -1, np.int64)
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
        lists: name -> ``[S, W]``, -1 beyond a row's length: ``ranks`` and ``path_sources`` (num_accepted entries),
            ``node_sources`` and ``tried_sources`` (an entry a node, -1 also in between), ``tokens`` (num_emitted
            entries); ``logprobs`` likewise (NaN beyond), where they were asked for.
        source_names: what the sources point into.
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
        for name in _SCALARS:
            columns[name] = np.concatenate([getattr(info, name) for info in infos]) if infos else none
        columns |= {"num_rows": np.repeat(rows, rows), "num_nodes": np.repeat(nodes, rows)}
        for phase in PHASES:
            seconds = np.asarray([info.seconds.get(phase, 0.0) for info in infos], dtype=np.float64)
            columns[f"seconds_{phase}"] = np.repeat(seconds / np.maximum(rows, 1), rows)
        sources, names = _sources(infos)
        lists = {
            "ranks": _padded([info.ranks for info in infos], -1, np.int64),
            **sources,
            "tokens": _padded([info.tokens for info in infos], -1, np.int64),
        }
        if infos and all(info.logprobs is not None for info in infos):
            lists["logprobs"] = _padded([info.logprobs for info in infos if info.logprobs is not None], np.nan, float)
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
        columns["truncated_by"] = [TRUNCATIONS[code] for code in columns["truncated_by"]]
        lengths = {"tokens": columns["num_emitted"], "logprobs": columns["num_emitted"]}
        for name, values in trace.lists.items():
            length = lengths.get(name, columns["num_accepted"])
            columns[name] = [row[:n] for row, n in zip(values.tolist(), length, strict=True)]
        for name in _SOURCES:
            columns[name] = [[trace.source_names[i] for i in row if i >= 0] for row in trace.lists[name].tolist()]
        return columns

    def columns(self) -> dict[str, list[Any]]:
        """Return name -> values; lists are cut to their row's length and causes and sources are spelled out."""
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
