"""What a drawn verdict means for each row: the block that it emits, and the record of the step.

Host side, no model, no loop over rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import BoolArray, Ending, IntArray, StageInfo, StepInfo


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


@dataclass(frozen=True)
class Decision:
    """The drawn decisions of a step, on the host. Nodes are scored nodes, root first, unless said otherwise.

    Attributes:
        tokens: ``[B, N]`` of the draft's nodes.
        num_nodes: ``[B]`` of the draft.
        stop: ``[B]`` node where the walk stopped.
        next_ids: ``[B]`` the token drawn there.
        is_scout: ``[B, N+1]``, of the root nothing is read; None: no node.
        source: likewise; None: all nodes are by source 0.
        walk: None for chains.
        logprobs: ``[B, N+1]`` along the accepted path, the next token last; None if nobody asked for them.
    """

    tokens: IntArray
    num_nodes: IntArray
    stop: IntArray
    next_ids: IntArray
    is_scout: BoolArray | None = None
    source: IntArray | None = None
    walk: Walk | None = None
    logprobs: NDArray[np.float64] | None = None

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

    @property
    def num_verified(self) -> IntArray:
        """``[B]`` how many nodes are."""
        return self.num_nodes if self.is_scout is None else self.is_verified.sum(1)


@dataclass(frozen=True)
class Block:
    """The tokens that each walk emits if no ending comes first.

    Attributes:
        tokens: ``[B, N+1]`` the accepted tokens and the next one, -1 beyond.
        num_accepted: ``[B]``.
    """

    tokens: IntArray
    num_accepted: IntArray

    @staticmethod
    def of(decision: Decision) -> "Block":
        """Return the blocks of drawn decisions. Cost: O(B N)."""
        accepted, ids, walk = decision.stop, decision.tokens, decision.walk
        batch, width = ids.shape
        if walk is not None and width:
            accepted = np.take_along_axis(walk.depth, decision.stop[:, None], 1)[:, 0]
            # Beyond the stop the path may hold the root, which is no node of the draft; that is not read.
            ids = np.take_along_axis(ids, walk.path[:, 1:] - 1, 1)
        tokens = np.full((batch, width + 1), -1, dtype=np.int64)
        np.copyto(tokens[:, :-1], ids, where=np.arange(width) < accepted[:, None])
        tokens[np.arange(batch), accepted] = decision.next_ids
        return Block(tokens, accepted)

    def cut(self, counts: IntArray, endings: IntArray) -> IntArray:
        """Return the first ``counts`` ``[B]`` tokens of each block ``[B, N+1]``, -1 beyond; a copy.

        Args:
            counts: those of the whole block in a row that has met no ending.
            endings: ``[B]`` codes of ``Ending``.
        """
        if not np.count_nonzero(endings):
            return self.tokens.copy()
        return np.where(np.arange(self.tokens.shape[1]) < counts[:, None], self.tokens, -1)


def record(
    decision: Decision,
    block: Block,
    *,
    requests: IntArray,
    num_committed: IntArray,
    shortened: BoolArray,
    counts: IntArray,
    endings: IntArray,
    seconds: dict[str, float],
    source_names: tuple[str, ...] = ("",),
    stages: tuple[StageInfo, ...] = (),
) -> StepInfo:
    """Return the record of a step.

    Args:
        decision: of the rows ``[B]``.
        block: of the decision.
        counts: ``[B]`` how many tokens of each block are emitted.
        endings: ``[B]`` codes of the ``Ending`` that each row has met.
        requests, num_committed, shortened, seconds, source_names, stages: see ``StepInfo``.

    Cost: O(B N) for chains, O(B N^2) for trees.
    """
    is_verified, accepted = decision.is_verified, block.num_accepted
    walked = (_on_chains if decision.walk is None else _on_trees)(decision, is_verified, accepted)
    num_drafted = decision.num_verified
    return StepInfo(
        requests=requests,
        num_committed=num_committed,
        num_drafted=num_drafted,
        num_scouts=decision.num_nodes - num_drafted,
        num_accepted=accepted,
        num_emitted=counts,
        truncated_by=np.where(counts <= accepted, endings, int(Ending.NONE)) if np.count_nonzero(endings) else endings,
        stopped_at_leaf=walked["num_children_at_stop"] == 0,
        shortened=shortened,
        node_sources=_sources(decision, is_verified),
        source_names=source_names,
        tokens=block.cut(counts, endings),
        logprobs=decision.logprobs,
        seconds=seconds,
        num_nodes=block.tokens.shape[1],
        stages=stages,
        **walked,
    )


def _sources(decision: Decision, chosen: BoolArray) -> IntArray:
    """Return ``[B, N]`` the sources of the chosen nodes, -1 elsewhere."""
    if decision.source is None:
        return np.subtract(chosen, 1, dtype=np.int64)  # 0 for True
    return np.where(chosen, decision.source[:, 1:], -1)


def _on_chains(decision: Decision, is_verified: BoolArray, accepted: IntArray) -> dict[str, Any]:
    """Return what walks along chains did; scouts end a chain, since no verified node hangs on one."""
    nodes = np.arange(is_verified.shape[1])
    num_verified = decision.num_verified
    on_path = nodes < accepted[:, None]
    return {
        "draft_depth": num_verified,
        "ranks": np.subtract(on_path, 1, dtype=np.int64),
        "num_children_at_stop": (accepted != num_verified).astype(np.int64),
        "path_sources": _sources(decision, on_path),
        "tried_sources": _sources(decision, is_verified & (nodes <= accepted[:, None])),
    }


def _on_trees(decision: Decision, is_verified: BoolArray, accepted: IntArray) -> dict[str, Any]:
    """Return what walks through trees did."""
    walk = decision.walk
    assert walk is not None
    nodes, above = np.arange(1, walk.parents.shape[1]), walk.parents[:, 1:]
    on_path = nodes <= accepted[:, None]
    is_elder = (above[:, :, None] == above[:, None, :]) & is_verified[:, None, :] & (nodes < nodes[:, None])
    rank = np.pad(is_elder.sum(2), ((0, 0), (1, 0)))
    last = np.take_along_axis(_last_tried(walk.path, accepted), above, 1)

    def along(values: IntArray) -> IntArray:
        return np.where(on_path, np.take_along_axis(values, walk.path[:, 1:], 1), -1)

    return {
        "draft_depth": np.where(is_verified, walk.depth[:, 1:], 0).max(1, initial=0),
        "ranks": along(rank),
        "num_children_at_stop": (is_verified & (above == decision.stop[:, None])).sum(1),
        "path_sources": along(np.zeros_like(walk.depth) if decision.source is None else decision.source),
        "tried_sources": _sources(decision, is_verified & (nodes <= last)),
    }


def _last_tried(path: IntArray, accepted: IntArray) -> IntArray:
    """Return ``[B, N+1]`` the last node that could be tried as a child of each node, -1 off the path."""
    batch, size = path.shape
    last = np.full((batch, size), -1, dtype=np.int64)
    rows, at = np.nonzero(np.arange(size) < accepted[:, None])
    last[rows, path[rows, at]] = path[rows, at + 1]
    last[np.arange(batch), path[np.arange(batch), accepted]] = size
    return last
