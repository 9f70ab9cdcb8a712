"""The identities between the statistics of a run; they are asserted on every run, whatever the interpreter's flags."""

from typing import TYPE_CHECKING

import numpy as np

from specdec.stats.trace import Array, Trace

if TYPE_CHECKING:
    from specdec.stats.stats import Stats


def _require(holds: Array, meaning: str, trace: Trace) -> None:
    """Raise with the first row that breaks an identity."""
    if not holds.all():
        row = int(np.argmin(holds))
        values = {name: column[row].item() for name, column in trace.columns.items()}
        raise AssertionError(f"{meaning}: broken in {int((~holds).sum())} of {len(holds)} rows, first by {values}")


def _require_succession(trace: Trace) -> None:
    """Raise if a request's step does not begin at the length that its last one left."""
    columns = trace.columns
    order = np.lexsort((columns["step"], columns["request"]))
    request, start = columns["request"][order], columns["num_committed"][order]
    holds = np.ones(len(order), dtype=np.bool_)
    after = start[:-1] + columns["num_emitted"][order][:-1]
    holds[order[1:]] = (request[1:] != request[:-1]) | (start[1:] == after)
    _require(holds, "a step begins where the request's last one ended", trace)


def check_trace(trace: Trace) -> None:
    """Assert what must hold for every request and step.

    Raises:
        AssertionError: names the identity, the number of rows that break it, and the first of them.
    """
    c, lists = trace.columns, trace.lists
    cut = c["num_accepted"] + 1 - c["num_emitted"]
    leaf = c["stopped_at_leaf"].astype(bool)
    _require(cut >= 0, "num_emitted <= num_accepted + 1", trace)
    _require((cut == 0) | (c["truncated_by"] > 0), "what is truncated has a cause", trace)
    _require(c["num_emitted"] >= 1, "every step emits a token", trace)
    _require((lists["tokens"] >= 0).sum(1) == c["num_emitted"], "num_emitted counts the emitted tokens", trace)
    _require((lists["ranks"] >= 0).sum(1) == c["num_accepted"], "num_accepted counts the accepted nodes", trace)
    _require(c["num_accepted"] <= c["draft_depth"], "num_accepted <= draft_depth", trace)
    _require(c["draft_depth"] <= c["num_drafted"], "draft_depth <= num_drafted", trace)
    _require((lists["node_sources"] >= 0).sum(1) == c["num_drafted"], "every verified node has a source", trace)
    _require(c["num_drafted"] + c["num_scouts"] < c["num_nodes"], "a call has room for all nodes and the root", trace)
    _require(leaf == (c["num_children_at_stop"] == 0), "a leaf is a node without verified children", trace)
    _require_succession(trace)


def check_pool(stats: "Stats") -> None:
    """Assert what must hold between the statistics of a run or of several.

    Raises:
        AssertionError: names the identity and both of its sides.
    """
    tried, accepted = sum(stats.tried_at_position), sum(stats.accepted_at_position)
    tried_at_rank, hits = sum(stats.tried_at_rank), sum(stats.accepted_at_rank)
    identities = {
        "num_emitted + num_truncated = num_accepted + num_steps": (
            stats.num_emitted + stats.num_truncated,
            stats.num_accepted + stats.num_steps,
        ),
        "num_recovered + num_bonus = num_steps": (stats.num_recovered + stats.num_bonus, stats.num_steps),
        "num_accepted = sum over positions": (stats.num_accepted, accepted),
        "num_accepted + num_recovered = verdicts over positions": (stats.num_accepted + stats.num_recovered, tried),
        "num_accepted = sum over ranks": (stats.num_accepted, hits),
        "num_drafted = sum over sources": (stats.num_drafted, sum(stats.drafted_by_source.values())),
        "num_accepted = sum over sources": (stats.num_accepted, sum(stats.accepted_by_source.values())),
        "verdicts over ranks = verdicts over sources": (tried_at_rank, sum(stats.tried_by_source.values())),
        "num_steps = sum over depths": (stats.num_steps, sum(stats.steps_by_depth)),
    }
    for meaning, (left, right) in identities.items():
        if left != right:
            raise AssertionError(f"{meaning}: {left} != {right}")
    if tried_at_rank < tried:
        raise AssertionError(f"a verdict on a position tries at least one sibling: {tried_at_rank} < {tried}")
