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


def _on_path(values: IntArray, nodes: IntArray | None, on_path: BoolArray) -> IntArray:
    """Return ``[B, N]`` the values of the nodes along the path (None: node i is the i-th), -1 beyond."""
    along = values if nodes is None else np.take_along_axis(values, nodes, 1)
    return np.where(on_path, along, -1)


def resolve(decision: Decision) -> Outcome:
    """Return what the decisions mean.

    Cost: O(B N) for chains, O(B N^2) for trees.
    """
    batch, width = decision.tokens.shape
    order = np.arange(width)
    real = order < decision.num_nodes[:, None]
    verified = real & ~decision.is_scout
    if decision.parents is None:
        accepted, path, nodes = decision.stop, None, None
        depths = order + 1
        below = np.concatenate([verified, np.zeros((batch, 1), dtype=np.bool_)], axis=1)
        children = below[np.arange(batch), decision.stop].astype(np.int64)
        rank = np.zeros((batch, width), dtype=np.int64)
        tried = verified & (order <= decision.stop[:, None])
    else:
        depths = _node_depths(decision.parents)
        padded = np.concatenate([np.zeros((batch, 1), dtype=np.int64), depths], axis=1)
        accepted = np.take_along_axis(padded, decision.stop[:, None], 1)[:, 0]
        path = _walk_up(decision.parents, decision.stop, accepted)
        nodes = np.maximum(path[:, 1:] - 1, 0)
        children = (verified & (decision.parents + 1 == decision.stop[:, None])).sum(1)
        same = decision.parents[:, :, None] == decision.parents[:, None, :]
        rank = (same & verified[:, None, :] & (order < order[:, None])).sum(2)
        tried = verified & (order <= np.take_along_axis(_last_tried(path, accepted), decision.parents + 1, 1))
    on_path = order < accepted[:, None]
    block = np.full((batch, width + 1), -1, dtype=np.int64)
    block[:, :width] = _on_path(decision.tokens, nodes, on_path)
    block[np.arange(batch), accepted] = decision.next_ids
    return Outcome(
        path=path,
        block=block,
        num_accepted=accepted,
        num_drafted=verified.sum(1),
        num_scouts=(real & decision.is_scout).sum(1),
        draft_depth=np.where(verified, depths, 0).max(1, initial=0),
        tree_depth=np.where(real, depths, 0).max(1, initial=0),
        stopped_at_leaf=children == 0,
        ranks=_on_path(rank, nodes, on_path),
        num_children_at_stop=children,
        path_sources=_on_path(decision.source, nodes, on_path),
        node_sources=np.where(verified, decision.source, -1),
        tried_sources=np.where(tried, decision.source, -1),
    )
