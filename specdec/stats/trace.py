"""The trace of a run: what every step reported, as columns with one row per request and step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import KIND, MEANING, PHASES, Ending, StepInfo
from specdec.stats.result_table import Table, count_of

Array = NDArray[Any]

# Rows of records that a notebook shows.
SHOWN = 8


def _of_kind(*kinds: str) -> tuple[str, ...]:
    """Return the fields of ``StepInfo`` of some kinds, in their order."""
    return tuple(f.name for f in fields(StepInfo) if f.metadata.get(KIND) in kinds)


_NUMBERS, _LISTS, _SOURCES = _of_kind("number"), _of_kind("list", "sources"), _of_kind("sources")
_OPTIONAL = tuple(f.name for f in fields(StepInfo) if f.metadata.get("optional"))
_LENGTHS = {f.name: f.metadata["length"] for f in fields(StepInfo) if "length" in f.metadata}


def stack_rows(parts: Sequence[Array], fill: float, empty: type) -> Array:
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
        field: stack_rows([code[getattr(info, field)] for code, info in zip(codes, infos, strict=True)], -1, np.int64)
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
    """

    columns: dict[str, Array]
    lists: dict[str, Array]
    source_names: tuple[str, ...]

    @staticmethod
    def of(infos: Sequence[StepInfo]) -> "Trace":
        """Return the trace of some steps. Cost: O(rows x width), without a loop over rows."""
        rows = np.asarray([len(info.requests) for info in infos], dtype=np.int64)
        nodes = np.asarray([info.num_nodes for info in infos], dtype=np.int64)
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
                lists[name] = stack_rows(given, np.nan if name in _OPTIONAL else -1, np.int64)
        return Trace(columns, lists, names)


def _are_successive(columns: Mapping[str, Array]) -> Array:
    """Return ``[S]`` bool: whether each step begins at the length that the request's last one left."""
    order = np.lexsort((columns["step"], columns["request"]))
    request, start = columns["request"][order], columns["num_committed"][order]
    holds = np.ones(len(order), dtype=np.bool_)
    after = start[:-1] + columns["num_emitted"][order][:-1]
    holds[order[1:]] = (request[1:] != request[:-1]) | (start[1:] == after)
    return holds


def check_trace(trace: Trace) -> None:
    """Assert what must hold for every request and step, whatever the interpreter's flags.

    Raises:
        AssertionError: names the identity, the number of rows that break it, and the first of them.
    """
    c, lists = trace.columns, trace.lists
    cut, leaf = c["num_accepted"] + 1 - c["num_emitted"], c["stopped_at_leaf"].astype(bool)
    identities = {
        "num_emitted <= num_accepted + 1": cut >= 0,
        "what is truncated has a cause": (cut == 0) | (c["truncated_by"] > 0),
        "every step emits a token": c["num_emitted"] >= 1,
        "num_emitted counts the emitted tokens": (lists["tokens"] >= 0).sum(1) == c["num_emitted"],
        "num_accepted counts the accepted nodes": (lists["ranks"] >= 0).sum(1) == c["num_accepted"],
        "num_accepted <= draft_depth": c["num_accepted"] <= c["draft_depth"],
        "draft_depth <= num_drafted": c["draft_depth"] <= c["num_drafted"],
        "every verified node has a source": (lists["node_sources"] >= 0).sum(1) == c["num_drafted"],
        "a call has room for all nodes and the root": c["num_drafted"] + c["num_scouts"] < c["num_nodes"],
        "a leaf is a node without verified children": leaf == (c["num_children_at_stop"] == 0),
        "a step begins where the request's last one ended": _are_successive(c),
    }
    for meaning, holds in identities.items():
        if not holds.all():
            values = {name: column[int(np.argmin(holds))].item() for name, column in c.items()}
            raise AssertionError(f"{meaning}: broken in {int((~holds).sum())} of {len(holds)} rows, first by {values}")


def _meanings(names: Sequence[str]) -> dict[str, str]:
    return {f.name: f.metadata[MEANING] for f in fields(StepInfo) if f.name in names}


# The columns of records, in their order, and what each holds; docs/guides/records.md has the table.
RECORD_COLUMNS: Mapping[str, str] = {
    "step": "number of the step in the run, from 0",
    "request": "number of the request in the run, from 0",
    **_meanings(_NUMBERS),
    "num_rows": "rows of the step's scoring call",
    "num_nodes": "width of that call: its nodes per row, padding and pending token included",
    "seconds_propose": "the row's equal share of the step's time to propose, and to take in what was emitted",
    **{f"seconds_{phase}": f"the row's equal share of the step's time to {phase}" for phase in PHASES[1:]},
    **_meanings(_LISTS),
}


class Records(Sequence[dict[str, Any]]):
    """One row per request and step: a sequence of dicts over columns that stay columns.

    ``columns()`` is what ``datasets.Dataset.from_dict`` takes, ``to_pandas()`` a data frame.
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

    def to_pandas(self) -> Any:
        """Return the records as a ``pandas.DataFrame``, a row for every request and step.

        Raises:
            ImportError: pandas is not installed.

        Cost: that of ``columns``.
        """
        import pandas

        return pandas.DataFrame(self._columns)

    def __repr__(self) -> str:
        requests = {request for info in self._infos for request in info.requests.tolist()}
        told = [(len(self), "row"), (len(self._infos), "step"), (len(requests), "request")]
        rows, steps, asked = (count_of(*one) for one in told)
        return f"Records({rows}: {steps} of {asked})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the first rows in all columns, and what these mean."""
        rows = self[:SHOWN]
        title = f"{self!r}" + (f", the first {SHOWN}" if len(self) > SHOWN else "")
        return Table(title, rows, legend=RECORD_COLUMNS)._repr_html_() if rows else f"<p>{title}</p>"

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


Records.to_pandas.__doc__ = "\n".join(
    [
        (Records.to_pandas.__doc__ or "").rstrip(),
        "",
        "        Columns:",
        *(f"            {name}: {meaning}." for name, meaning in RECORD_COLUMNS.items()),
        "        ",
    ]
)
