"""The record of a step. Host side, no model, no loop over rows."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import BoolArray, Draft, IntArray, StepInfo
from specdec.engine.outcome import Decision, StepOutcome
from specdec.transfers import on_host


def record(
    outcome: StepOutcome,
    draft: Draft,
    *,
    requests: IntArray,
    num_committed: IntArray,
    shortened: BoolArray,
    seconds: dict[str, float],
    name: str,
) -> StepInfo:
    """Return the record of a step.

    Args:
        outcome: what the step made.
        draft: what was verified.
        requests, num_committed, seconds: see ``StepInfo``.
        shortened: ``[B]`` rows whose draft the end of the text shortened; those that a budget cut are the draft's.
        name: of the source, if the draft does not say whose its nodes are.

    Cost: O(B N) for chains, O(B N^2) for trees.
    """
    decision, block, accepted, counts, endings, *_ = outcome
    num_nodes, is_scout = decision.num_nodes, decision.is_scout
    num_verified = num_nodes if is_scout is None else decision.is_verified.sum(1)
    walked = (_on_chains if decision.walk is None else _on_trees)(decision, accepted, num_verified)
    return StepInfo(
        requests=requests,
        num_committed=num_committed,
        num_drafted=num_verified,
        num_scouts=num_nodes - num_verified,
        num_accepted=accepted,
        num_emitted=counts,
        truncated_by=endings * (counts <= accepted),  # else 0, which is Ending.NONE
        shortened=shortened if draft.shortened is None else shortened | on_host(draft.shortened),
        source_names=draft.source_names or (name,),
        tokens=outcome.emitted(),
        logprobs=decision.logprobs,
        seconds=seconds,
        num_nodes=block.shape[1],
        stages=draft.stages,
        **walked,
    )


def _sources(decision: Decision, chosen: BoolArray) -> IntArray:
    """Return ``[B, N]`` the sources of the chosen nodes, -1 elsewhere."""
    if decision.source is None:
        return np.subtract(chosen, 1, dtype=np.int64)  # 0 for True
    return np.where(chosen, decision.source[:, 1:], -1)


@lru_cache(maxsize=256)
def _first_nodes(width: int) -> IntArray:
    """Return ``[N + 1, N]``: row k has 0 in its first k columns, -1 beyond; nobody writes to it."""
    return np.triu(np.ones((width + 1, width), dtype=np.int64)) * -1


def _on_chains(decision: Decision, accepted: IntArray, num_verified: IntArray) -> dict[str, NDArray[Any]]:
    """Return what walks along chains did; scouts end a chain, since no verified node hangs on one."""
    first, source = _first_nodes(decision.tokens.shape[1]), decision.source
    ranks, at_leaf = first.take(accepted, axis=0), accepted == num_verified
    # Of the accepted nodes, of the verified ones, and of those that a verdict was given on: 0, or -1 beyond.
    sources = [ranks, first.take(num_verified, axis=0), first.take(np.minimum(accepted + 1, num_verified), axis=0)]
    if source is not None:
        sources = [np.where(chosen == 0, source[:, 1:], -1) for chosen in sources]
    return {
        "draft_depth": num_verified,
        "ranks": ranks,
        "num_children_at_stop": np.subtract(1, at_leaf),
        "stopped_at_leaf": at_leaf,
        "path_sources": sources[0],
        "node_sources": sources[1],
        "tried_sources": sources[2],
    }


def _on_trees(decision: Decision, accepted: IntArray, num_verified: IntArray) -> dict[str, NDArray[Any]]:
    """Return what walks through trees did."""
    walk, is_verified = decision.walk, decision.is_verified
    assert walk is not None
    size, rows = walk.parents.shape[1], np.arange(len(accepted))[:, None]
    nodes, above, path, level = np.arange(1, size), walk.parents[:, 1:], walk.path[:, 1:], walk.depth[:, 1:]
    on_path = nodes <= accepted[:, None]
    is_elder = (above[:, :, None] == above[:, None, :]) & is_verified[:, None, :] & (nodes < nodes[:, None])
    num_children = (is_verified & (above == decision.stop[:, None])).sum(1)
    # The walk tried the children of the nodes on its way, up to the one it went into; of its stop all.
    ends_above, went_into = level > accepted[:, None], walk.path[rows, level]
    is_tried = (
        (walk.path[rows, level - 1] == above) & (level <= accepted[:, None] + 1) & (ends_above | (nodes <= went_into))
    )
    return {
        "draft_depth": (level * is_verified).max(1, initial=0),
        "ranks": np.where(on_path, is_elder.sum(2)[rows, path - 1], -1),
        "num_children_at_stop": num_children,
        "stopped_at_leaf": num_children == 0,
        "path_sources": np.where(on_path, 0 if decision.source is None else decision.source[rows, path], -1),
        "node_sources": _sources(decision, is_verified),
        "tried_sources": _sources(decision, is_verified & is_tried),
    }
