"""A trace summed up: counts, histograms and times of each request of a run, without a loop over rows."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from specdec.contracts import PHASES, Ending, IntArray
from specdec.stats.stats import SUM, Stats
from specdec.stats.trace import Array, Trace


def _histogram(group: IntArray, value: IntArray, num_groups: int, width: int) -> IntArray:
    """Return ``[num_groups, width]``: how often each value (0..width-1) occurs in each group."""
    flat = np.bincount(group * width + value, minlength=num_groups * width)
    return flat.reshape(num_groups, width).astype(np.int64)


def _suffix_sums(counts: IntArray) -> IntArray:
    """Return sum over j >= i of ``counts[:, j]``."""
    return counts[:, ::-1].cumsum(axis=1)[:, ::-1]


class Reduction:
    """The trace of a run, summed over the rows of each of its requests, which are the groups."""

    def __init__(self, trace: Trace, num_requests: int) -> None:
        self.trace, self.group, self.num_groups = trace, trace.columns["request"], num_requests

    def sum(self, values: Array) -> Array:
        """Return ``[num_groups]`` sums of ``values`` ``[S]``."""
        sums = np.bincount(self.group, values, minlength=self.num_groups)
        return sums if values.dtype == np.float64 else sums.astype(np.int64)

    def counts(self) -> dict[str, IntArray]:
        """Return the plain counts, each ``[num_groups]``."""
        summed = {f.name: f.metadata[SUM] for f in fields(Stats) if SUM in f.metadata}
        return {name: self.sum(of(self.trace.columns).astype(np.int64)) for name, of in summed.items()}

    def truncated(self) -> dict[str, IntArray]:
        """Return the truncated tokens by cause, each ``[num_groups]``."""
        columns = self.trace.columns
        cut = columns["num_accepted"] + 1 - columns["num_emitted"]
        return {end.word: self.sum(cut * (columns["truncated_by"] == end)) for end in Ending if end is not Ending.NONE}

    def histograms(self) -> dict[str, IntArray]:
        """Return the histograms by depth, position and rank, each ``[num_groups, K]``."""
        columns, groups, n = self.trace.columns, self.group, self.num_groups
        recovered = ~columns["stopped_at_leaf"].astype(bool)
        accepted, children, ranks = columns["num_accepted"], columns["num_children_at_stop"], self.trace.lists["ranks"]
        depth = int(columns["draft_depth"].max(initial=0))
        stops = _histogram(groups, accepted, n, depth + 1)
        # Position i is kept by the rows that stop deeper than i - 1, and tried by the rows that stop there too.
        kept = _suffix_sums(stops)[:, 1:]
        failed = _histogram(groups[recovered], accepted[recovered], n, depth + 1)[:, :depth]
        width = int(max(children.max(initial=0), ranks.max(initial=-1) + 1))
        rows, at = np.nonzero(ranks >= 0)
        hits = _histogram(groups[rows], ranks[rows, at], n, width)
        # A stop with m verified children rejected the ranks 0..m-1.
        misses = _suffix_sums(_histogram(groups, children, n, width + 1))[:, 1:]
        return {
            "steps_by_depth": _histogram(groups, columns["draft_depth"], n, depth + 1),
            "accepted_at_position": kept,
            "tried_at_position": kept + failed,
            "accepted_at_rank": hits,
            "tried_at_rank": _suffix_sums(hits) + misses,
        }

    def sources(self, which: str) -> dict[str, Array]:
        """Return how many nodes of a list of sources each source has, each ``[num_groups]``."""
        nodes = self.trace.lists[which]
        return {name: self.sum((nodes == i).sum(1)) for i, name in enumerate(self.trace.source_names)}

    def fields(self, extra: Mapping[str, Array]) -> list[dict[str, Any]]:
        """Return every group's fields of ``Stats``; ``extra`` holds more of them, each ``[num_groups]``."""
        plain = {name: values.tolist() for name, values in {**self.counts(), **extra}.items()}
        shapes = {name: values.tolist() for name, values in self.histograms().items()}
        named: dict[str, dict[str, Array]] = {"truncated": self.truncated()}
        for name, which in (("drafted", "node"), ("tried", "tried"), ("accepted", "path")):
            named[f"{name}_by_source"] = self.sources(f"{which}_sources")
        named["seconds"] = {phase: self.sum(self.trace.columns[f"seconds_{phase}"]) for phase in PHASES}
        maps = {name: {key: values.tolist() for key, values in entry.items()} for name, entry in named.items()}
        groups = []
        for i in range(self.num_groups):
            fields_i: dict[str, Any] = {name: values[i] for name, values in plain.items()}
            fields_i |= {name: tuple(values[i]) for name, values in shapes.items()}
            fields_i |= {name: {key: values[i] for key, values in entry.items()} for name, entry in maps.items()}
            groups.append(fields_i)
        return groups
