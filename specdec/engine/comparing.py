"""Drafted ids compared with the target's own on the host, if its laws are points: without a law or a rule."""

import numpy as np

from specdec.contracts import BoolArray, IntArray


def agreed(tokens: IntArray, num_nodes: IntArray, ids: IntArray) -> IntArray:
    """Return ``[B]`` the node at which each chain stops agreeing, root first.

    Args:
        tokens: ``[B, N]`` of the draft's nodes.
        num_nodes: ``[B]`` how many are real.
        ids: ``[B, N+1]`` what the target says after each node, root first.
    """
    agrees = np.zeros(ids.shape, dtype=np.bool_)  # the last column stands for the end
    np.equal(tokens, ids[:, :-1], out=agrees[:, :-1])
    agree = agrees.argmin(1)
    # Padding that agrees follows on a draft that agrees wholly. Counts below 0 are reported later.
    stop: IntArray = np.maximum(np.minimum(agree, num_nodes), 0)
    return stop


def walked(tokens: IntArray, parents: IntArray, is_verified: BoolArray, ids: IntArray) -> tuple[IntArray, IntArray]:
    """Return ``[B]`` where walks stop that go into the first child with the target's id, and their paths ``[B, N+1]``.

    Args:
        tokens: ``[B, N]`` of the draft's nodes.
        parents: ``[B, N+1]``, -1 for the root.
        is_verified: ``[B, N]`` the nodes that may be entered.
        ids: ``[B, N+1]`` what the target says after each node, root first.

    Cost: a few operations of O(B N) for each level of the trees.
    """
    rows, above = np.arange(len(tokens)), parents[:, 1:]
    stop, path = np.zeros(len(tokens), dtype=np.int64), np.zeros(parents.shape, dtype=np.int64)
    for depth in range(1, parents.shape[1]):
        enters = is_verified & (above == stop[:, None]) & (tokens == ids[rows, stop][:, None])
        child = enters.argmax(1)
        goes_on = enters[rows, child]
        if not goes_on.any():
            break
        stop = np.where(goes_on, child + 1, stop)
        path[:, depth] = stop
    return stop, path


def depths(parents: IntArray) -> IntArray:
    """Return ``[B, N+1]`` how far each node is from the root, from parents that are -1 or below the node's index.

    Cost: a few operations of O(B N) for each level.
    """
    depth, above = np.zeros(parents.shape, dtype=np.int64), parents
    for _ in range(parents.shape[1]):
        has_parent = above >= 0
        if not has_parent.any():
            break
        depth += has_parent
        # Indices that are no parents are reported later.
        above = np.where(has_parent, np.take_along_axis(parents, above.clip(0, parents.shape[1] - 1), 1), -1)
    return depth
