"""What a step made: what a drawn verdict means for each row, and its record. Host side, no model, no loop over rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import BoolArray, Draft, Ending, IntArray, Likeliest, StepInfo
from specdec.requests import first_eos
from specdec.transfers import on_host


@dataclass(frozen=True)
class Walk:
    """The trees of a step and the walks through them, unless they are chains.

    Attributes:
        parents: ``[B, N+1]``, -1 for the root.
        depth: ``[B, N+1]``.
        path: ``[B, N+1]`` from the root to the stop, arbitrary beyond.
    """

    parents: IntArray
    depth: IntArray
    path: IntArray


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What a step made, on the host, from which the rest of its record follows; nobody changes it afterwards.

    Nodes are scored nodes, root first, unless said otherwise.

    Attributes:
        tokens: ``[B, N]`` of the draft's nodes.
        num_nodes: ``[B]`` of the draft.
        stop: ``[B]`` node where the walk stopped.
        next_ids: ``[B]`` the token drawn there.
        is_scout: ``[B, N+1]``, the root's entry is never read; None: no node is a scout.
        source: likewise; None: all nodes are by source 0.
        walk: None for chains.
        block: ``[B, N+1]`` the accepted tokens and the next one, -1 beyond.
        num_accepted: ``[B]``.
        counts: ``[B]`` how many tokens of each block are emitted.
        endings: ``[B]`` codes of the ``Ending`` that each row has met.
        judge: who judged: the rule's name, "native: " before it if a compiled judge did.
        logprobs: ``[B, N+1]`` of the block's tokens; None if nobody asked for them.
        likeliest: that of the step's scores, on the host, for a source that reads logits of a device; None: not asked
            for.
    """

    tokens: IntArray
    num_nodes: IntArray
    stop: IntArray
    next_ids: IntArray
    is_scout: BoolArray | None
    source: IntArray | None
    walk: Walk | None
    block: IntArray
    num_accepted: IntArray
    counts: IntArray
    endings: IntArray
    judge: str
    logprobs: NDArray[np.float64] | None = None
    likeliest: Likeliest | None = None

    @property
    def draft_depth(self) -> IntArray:
        """``[B]`` the longest path of each draft, scouts included."""
        if self.walk is None:
            return self.num_nodes
        is_real = np.arange(self.walk.depth.shape[1]) <= self.num_nodes[:, None]
        depth: IntArray = np.where(is_real, self.walk.depth, 0).max(1)
        return depth

    @property
    def is_verified(self) -> BoolArray:
        """``[B, N]``: neither the root nor padding nor a scout."""
        real: BoolArray = np.arange(self.tokens.shape[1]) < self.num_nodes[:, None]
        return real if self.is_scout is None else real & ~self.is_scout[:, 1:]

    @cached_property
    def emitted(self) -> IntArray:
        """``[B, N+1]`` the tokens that are emitted, -1 beyond."""
        # If no row met an ending, the blocks are emitted whole.
        if not any(self.endings.tolist()):
            return self.block
        return np.where(np.arange(self.block.shape[1]) < self.counts[:, None], self.block, -1)


def emissions(
    ids: IntArray, stop: IntArray, next_ids: IntArray, walk: Walk | None, eos_ids: Sequence[int], ignore_eos: BoolArray
) -> dict[str, IntArray]:
    """Return ``block``, ``num_accepted``, ``counts`` and ``endings`` of a ``StepOutcome`` with these other parts.

    Args:
        ids: ``[B, N]`` its ``tokens``.
        stop, next_ids, walk: see there.
        eos_ids: that end a row.
        ignore_eos: ``[B]`` bool: the rows that they do not end.

    Cost: O(B N).
    """
    accepted, (batch, width) = stop, ids.shape
    if walk is not None and width:
        accepted = np.take_along_axis(walk.depth, stop[:, None], 1)[:, 0]
        # Beyond the stop the path may hold the root, which is no node of the draft; that is not read.
        ids = np.take_along_axis(ids, walk.path[:, 1:] - 1, 1)
    block = np.full((batch, width + 1), -1, dtype=np.int64)
    np.copyto(block[:, :-1], ids, where=np.arange(width) < accepted[:, None])
    block[np.arange(batch), accepted] = next_ids
    counts, endings = accepted + 1, np.zeros(batch, dtype=np.int64)  # Ending.NONE
    if (eos := first_eos(block, counts, eos_ids, ignore_eos)) is not None:
        endings[eos < counts] = Ending.EOS
        counts = np.minimum(counts, eos + 1)
    return {"block": block, "num_accepted": accepted, "counts": counts, "endings": endings}


def record(
    outcome: StepOutcome,
    draft: Draft,
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
        shortened: ``[B]`` rows whose draft the end of the text shortened; the draft says which ones a budget cut.
        name: of the source; used if the draft does not say whose its nodes are.

    Cost: O(B N) for chains, O(B N^2) for trees.
    """
    accepted, counts, num_nodes = outcome.num_accepted, outcome.counts, outcome.num_nodes
    num_verified = num_nodes if outcome.is_scout is None else outcome.is_verified.sum(1)
    walked = (_on_chains if outcome.walk is None else _on_trees)(outcome, accepted, num_verified)
    return StepInfo(
        requests=requests,
        num_committed=num_committed,
        num_drafted=num_verified,
        num_scouts=num_nodes - num_verified,
        num_accepted=accepted,
        num_emitted=counts,
        truncated_by=outcome.endings * (counts <= accepted),  # else 0, which is Ending.NONE
        shortened=shortened if draft.shortened is None else shortened | on_host(draft.shortened),
        source_names=draft.source_names or (name,),
        tokens=outcome.emitted,
        logprobs=outcome.logprobs,
        seconds=seconds,
        num_nodes=outcome.block.shape[1],
        stages=draft.stages,
        **walked,
    )


def _sources(outcome: StepOutcome, chosen: BoolArray) -> IntArray:
    """Return ``[B, N]`` the sources of the chosen nodes, -1 elsewhere."""
    if outcome.source is None:
        return np.subtract(chosen, 1, dtype=np.int64)  # 0 for True
    return np.where(chosen, outcome.source[:, 1:], -1)


@lru_cache(maxsize=256)
def _first_nodes(width: int) -> IntArray:
    """Return ``[N + 1, N]``: row k has 0 in its first k columns, -1 beyond; nobody writes to it."""
    return np.triu(np.ones((width + 1, width), dtype=np.int64)) * -1


def _on_chains(outcome: StepOutcome, accepted: IntArray, num_verified: IntArray) -> dict[str, NDArray[Any]]:
    """Return what walks along chains did; scouts end a chain, since no verified node hangs on one."""
    first, source = _first_nodes(outcome.tokens.shape[1]), outcome.source
    ranks, at_leaf = first.take(accepted, axis=0), accepted == num_verified
    # The accepted nodes, the verified ones, and those that a verdict was given on: 0 for each, -1 beyond.
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


def _on_trees(outcome: StepOutcome, accepted: IntArray, num_verified: IntArray) -> dict[str, NDArray[Any]]:
    """Return what walks through trees did."""
    walk, is_verified = outcome.walk, outcome.is_verified
    assert walk is not None
    size, rows = walk.parents.shape[1], np.arange(len(accepted))[:, None]
    nodes, above, path, level = np.arange(1, size), walk.parents[:, 1:], walk.path[:, 1:], walk.depth[:, 1:]
    on_path = nodes <= accepted[:, None]
    is_elder = (above[:, :, None] == above[:, None, :]) & is_verified[:, None, :] & (nodes < nodes[:, None])
    num_children = (is_verified & (above == outcome.stop[:, None])).sum(1)
    # At each node on its way the walk tried the children up to the one it went into; at its stop it tried all.
    ends_above, went_into = level > accepted[:, None], walk.path[rows, level]
    is_tried = (
        (walk.path[rows, level - 1] == above) & (level <= accepted[:, None] + 1) & (ends_above | (nodes <= went_into))
    )
    return {
        "draft_depth": (level * is_verified).max(1, initial=0),
        "ranks": np.where(on_path, is_elder.sum(2)[rows, path - 1], -1),
        "num_children_at_stop": num_children,
        "stopped_at_leaf": num_children == 0,
        "path_sources": np.where(on_path, 0 if outcome.source is None else outcome.source[rows, path], -1),
        "node_sources": _sources(outcome, is_verified),
        "tried_sources": _sources(outcome, is_verified & is_tried),
    }
