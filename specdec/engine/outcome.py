"""What a drawn verdict means for each row: path, counts and emitted block. Host side, no model, no loop over rows."""

from dataclasses import dataclass

import numpy as np

from specdec.contracts import BoolArray, IntArray


@dataclass(frozen=True)
class Decision:
    """The drawn decisions of a step, on the host.

    Attributes:
        tokens: ``[B, N]`` draft tokens.
        parents: ``[B, N]`` (-1 = root), or None for chains.
        num_nodes: ``[B]``.
        is_scout: ``[B, N]``.
        source: ``[B, N]``.
        stop: ``[B]`` scoring node (0 = root) where the walk stopped.
        next_ids: ``[B]`` the token drawn there.
    """

    tokens: IntArray
    parents: IntArray | None
    num_nodes: IntArray
    is_scout: BoolArray
    source: IntArray
    stop: IntArray
    next_ids: IntArray


@dataclass(frozen=True)
class Outcome:
    """A step's decisions made out for every row; the counts are those of ``StepInfo``.

    Attributes:
        path: ``[B, N+1]`` scoring nodes, root first, arbitrary beyond ``num_accepted + 1``; None for chains.
        block: ``[B, N+1]`` the accepted tokens and the next one, -1 beyond.
        tree_depth: ``[B]`` longest path, scouts included.
        node_sources: ``[B, N]`` the source of each verified node, -1 for scouts and padding.
        tried_sources: ``[B, N]`` the source of each node that a verdict was given on, -1 elsewhere: the walk stood at
            its parent, and its earlier siblings were rejected.
    """

    path: IntArray | None
    block: IntArray
    num_accepted: IntArray
    num_drafted: IntArray
    num_scouts: IntArray
    draft_depth: IntArray
    tree_depth: IntArray
    stopped_at_leaf: BoolArray
    ranks: IntArray
    num_children_at_stop: IntArray
    path_sources: IntArray
    node_sources: IntArray
    tried_sources: IntArray


def _node_depths(parents: IntArray) -> IntArray:
    """Return ``[B, N]`` depth of each draft node (children of the root: 1)."""
    depths = np.zeros((parents.shape[0], parents.shape[1] + 1), dtype=np.int64)
    for node in range(parents.shape[1]):
        depths[:, node + 1] = np.take_along_axis(depths, parents[:, node : node + 1] + 1, 1)[:, 0] + 1
    return depths[:, 1:]


def _walk_up(parents: IntArray, stop: IntArray, depth: IntArray) -> IntArray:
    """Return ``[B, N+1]`` the scoring nodes from the root to ``stop``; 0 beyond."""
    batch, width = parents.shape
    above = np.concatenate([np.zeros((batch, 1), dtype=np.int64), parents + 1], axis=1)
    path = np.zeros((batch, width + 1), dtype=np.int64)
    rows, node = np.arange(batch), stop.copy()
    for back in range(int(depth.max(initial=0)) + 1):
        at = np.maximum(depth - back, 0)
        path[rows, at] = np.where(back <= depth, node, path[rows, at])
        node = above[rows, node]
    return path


def _last_tried(path: IntArray, accepted: IntArray) -> IntArray:
    """Return ``[B, N+1]`` the last draft node that could be tried as a child of each scoring node, -1 off the path."""
    batch, size = path.shape
    last = np.full((batch, size), -1, dtype=np.int64)
    rows, at = np.nonzero(np.arange(size) < accepted[:, None])
    last[rows, path[rows, at]] = path[rows, at + 1] - 1
    last[np.arange(batch), path[np.arange(batch), accepted]] = size
    return last


def resolve(decision: Decision) -> Outcome:
    """Return what the decisions mean.

    Cost: O(B N) for chains, O(B N^2) for trees.
    """
    order = np.arange(decision.tokens.shape[1])
    real = order < decision.num_nodes[:, None]
    is_verified = real & ~decision.is_scout
    if decision.parents is None:
        return _resolve_chains(decision, is_verified, real)
    return _resolve_trees(decision, decision.parents, is_verified, real)


def _resolve_chains(decision: Decision, is_verified: BoolArray, real: BoolArray) -> Outcome:
    """Return what the decisions on chains mean; scouts end a chain, since no verified node hangs on one."""
    width, accepted = decision.tokens.shape[1], decision.stop
    num_verified = is_verified.sum(1)
    on_path = np.arange(width) < accepted[:, None]
    stopped_at_leaf = accepted == num_verified
    return Outcome(
        path=None,
        block=_block(decision, np.where(on_path, decision.tokens, -1), accepted),
        num_accepted=accepted,
        num_drafted=num_verified,
        num_scouts=real.sum(1) - num_verified,
        draft_depth=num_verified,
        tree_depth=decision.num_nodes,
        stopped_at_leaf=stopped_at_leaf,
        ranks=np.where(on_path, 0, -1),
        num_children_at_stop=1 - stopped_at_leaf,
        path_sources=np.where(on_path, decision.source, -1),
        node_sources=np.where(is_verified, decision.source, -1),
        tried_sources=np.where(is_verified & (np.arange(width) <= accepted[:, None]), decision.source, -1),
    )


def _resolve_trees(decision: Decision, parents: IntArray, is_verified: BoolArray, real: BoolArray) -> Outcome:
    batch, width = decision.tokens.shape
    order = np.arange(width)
    depths = _node_depths(parents)
    padded = np.concatenate([np.zeros((batch, 1), dtype=np.int64), depths], axis=1)
    accepted = np.take_along_axis(padded, decision.stop[:, None], 1)[:, 0]
    path = _walk_up(parents, decision.stop, accepted)
    nodes, on_path = np.maximum(path[:, 1:] - 1, 0), order < accepted[:, None]
    children = (is_verified & (parents + 1 == decision.stop[:, None])).sum(1)
    same = parents[:, :, None] == parents[:, None, :]
    rank = (same & is_verified[:, None, :] & (order < order[:, None])).sum(2)
    last = np.take_along_axis(_last_tried(path, accepted), parents + 1, 1)

    def along(values: IntArray) -> IntArray:
        return np.where(on_path, np.take_along_axis(values, nodes, 1), -1)

    return Outcome(
        path=path,
        block=_block(decision, along(decision.tokens), accepted),
        num_accepted=accepted,
        num_drafted=is_verified.sum(1),
        num_scouts=(real & decision.is_scout).sum(1),
        draft_depth=np.where(is_verified, depths, 0).max(1, initial=0),
        tree_depth=np.where(real, depths, 0).max(1, initial=0),
        stopped_at_leaf=children == 0,
        ranks=along(rank),
        num_children_at_stop=children,
        path_sources=along(decision.source),
        node_sources=np.where(is_verified, decision.source, -1),
        tried_sources=np.where(is_verified & (order <= last), decision.source, -1),
    )


def _block(decision: Decision, accepted_ids: IntArray, accepted: IntArray) -> IntArray:
    """Return ``[B, N+1]`` the accepted ids ``[B, N]`` (-1 beyond) and, behind them, the next one."""
    batch, width = accepted_ids.shape
    block = np.full((batch, width + 1), -1, dtype=np.int64)
    block[:, :width] = accepted_ids
    block[np.arange(batch), accepted] = decision.next_ids
    return block
