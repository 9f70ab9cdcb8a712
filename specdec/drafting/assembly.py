"""Nodes that are absent or not kept, taken out of trees."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specdec.contracts import BoolArray, IntArray


@dataclass(frozen=True)
class Compacted:
    """The real nodes of trees ``[B, S]`` side by side, ``[B, W]``, W that of the row that has most.

    Args:
        is_real: ``[B, S]``; no node that is real stands below one that is not.
        above: ``[B, S]``, or ``[S]`` for all rows, each node's parent.
    """

    is_real: BoolArray
    above: IntArray

    @cached_property
    def num_nodes(self) -> IntArray:
        """``[B]``."""
        counts: IntArray = self.is_real.sum(1)
        return counts

    @cached_property
    def order(self) -> IntArray:
        """``[B, W]`` the place among S of each node, any for padding."""
        order: IntArray = np.argsort(~self.is_real, axis=1, kind="stable")
        return order[:, : int(self.num_nodes.max(initial=0))]

    @cached_property
    def is_padding(self) -> BoolArray:
        """``[B, W]``."""
        padding: BoolArray = np.arange(self.order.shape[1]) >= self.num_nodes[:, None]
        return padding

    @cached_property
    def parents(self) -> IntArray:
        """``[B, W]``; padding goes on as a chain, so that chains among trees are chains."""
        rows, above = np.arange(len(self.is_real))[:, None], np.broadcast_to(self.above, self.is_real.shape)
        # A node that stays moves to the left by the number of nodes before it that do not.
        place = self.is_real.cumsum(1) - 1
        parents = np.where(above < 0, -1, place[rows, above])[rows, self.order]
        return np.where(self.is_padding, np.arange(parents.shape[1]) - 1, parents)
