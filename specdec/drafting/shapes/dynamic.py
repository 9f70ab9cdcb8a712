"""Shapes that are decided while a tree grows, by the confidence of its paths."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from specdec.contracts import BoolArray, IntArray
from specdec.drafting.shapes.shape import Best, Level, check_size
from specdec.theory import check_count, check_share


@dataclass(frozen=True)
class _Growing:
    """What shapes by confidence have in common: none of their nodes are known beforehand."""

    num_nodes: int
    max_depth: int

    paths: ClassVar[None] = None
    reads_confidence: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("num_nodes", self.num_nodes, 0)
        check_count("max_depth", self.max_depth, 0)
        check_size(self.num_nodes)

    def plan(self, max_depth: IntArray, max_nodes: IntArray) -> None:
        """Return None: confidences decide."""


@dataclass(frozen=True)
class Grown(_Growing):
    """Grow a tree best-first, level by level, by the cumulative confidence of its paths; every drawn node is kept.

    With C(n) the product of the confidences along the path to node n and q_n(j) the j-th largest probability of the law
    that n's children are drawn from, a level takes the ``width`` pairs (n, j) with the largest C(n) q_n(j). A node with
    m pairs among them gets m children. So the decision reads laws and nodes that are drawn already, and no token that
    is yet to be drawn. If tokens are chosen by rank (temperature 0), C(n) q_n(j) is the confidence of the child itself.

    Args:
        num_nodes: the most nodes of a tree.
        max_depth: its most levels.
        width: the most nodes of a level; None: num_nodes / max_depth, rounded up.
        min_confidence: pairs below it get no node, so that trees are small if the source is unsure.

    Raises:
        ValueError: an argument out of range.

    Guarantee: lossless under every lossless rule for trees.
    Cost: waits for the device once a level, to read O(B width^2) numbers.
    Source: the value of a node is that of Li et al. 2024 (EAGLE-2, arXiv 2406.16858), section 4.1.
    Deviations: EAGLE-2 takes the best candidates of a level after they were made, which drawn tokens do not allow.
    """

    width: int | None = None
    min_confidence: float = 0.0

    num_kept: ClassVar[None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width is not None:
            check_count("width", self.width, 1)
        check_share("min_confidence", self.min_confidence)

    @property
    def level_width(self) -> int:
        """The most nodes of a level."""
        if self.width is None:
            return -(-self.num_nodes // max(self.max_depth, 1))
        return min(self.width, max(self.num_nodes, 1))

    @property
    def max_nodes(self) -> int:
        """The most nodes of a draft."""
        return min(self.num_nodes, self.level_width * self.max_depth)

    @property
    def max_scored(self) -> int:
        """The most nodes that are scored to draft a tree."""
        return self.level_width * max(self.max_depth - 1, 0)

    @property
    def branches(self) -> bool:
        """Whether a node may have more than one child."""
        return self.level_width > 1 and self.max_depth > 0

    def _room(self, level: Level) -> IntArray:
        """Return ``[B]`` how many nodes the next level of each row may hold."""
        size = np.minimum(level.max_nodes, self.num_nodes) - level.num_planned
        deeper = level.depth < np.minimum(level.max_depth, self.max_depth)
        return np.where(deeper, np.maximum(np.minimum(size, self.level_width), 0), 0)

    def mask_scored(self, level: Level) -> BoolArray:
        """Return ``[B, W]`` bool: which nodes are scored."""
        scored: BoolArray = (level.number >= 0) & (self._room(level) > 0)[:, None]
        return scored

    def children(self, level: Level, best: Best) -> IntArray:
        """Return ``[B, W]`` how many children each scored node gets."""
        values = best(self.level_width)
        flat = values.reshape(len(values), -1)
        order = np.argsort(-flat, axis=1, kind="stable")
        # The values of a node fall with the rank, so those taken are always its first ones.
        taken = np.zeros(flat.shape, dtype=np.bool_)
        taken[np.arange(len(flat))[:, None], order] = np.arange(flat.shape[1]) < self._room(level)[:, None]
        taken &= (flat > 0) & (flat >= self.min_confidence)
        counts: IntArray = taken.reshape(values.shape).sum(-1)
        return counts


@dataclass(frozen=True)
class ReRanked(_Growing):
    """Grow more than is kept, and keep the best nodes by cumulative confidence, as EAGLE-2 does.

    A level's ``width`` best nodes get ``width`` children each; of all nodes so made, the ``num_nodes`` with the largest
    product of confidences along their path are the draft. Such a set is a tree: no node's product is above its
    parent's.

    Which nodes are kept depends on their tokens. For tokens chosen by rank that is a choice among candidates. *Drawn*
    tokens that were kept this way would follow another law than the one they were drawn from, and move the output. So
    sources refuse this shape unless they draft greedily.

    Args:
        num_nodes: nodes of a draft.
        max_depth: levels that are grown.
        width: nodes of a level that go on, and children of each.

    Raises:
        ValueError: an argument out of range.

    Guarantee: lossless under every lossless rule for trees, as what is kept are point masses.
    Cost: width + (max_depth - 1) width^2 candidates; waits for the device once a level.
    Source: Li et al. 2024 (EAGLE-2, arXiv 2406.16858), sections 4.1 and 4.2.
    Deviations: EAGLE-2 also re-ranks at temperatures above 0, where its candidates stay deterministic; here that is
        the source's ``temperature=0``.
    """

    width: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("width", self.width, 1)

    @property
    def max_nodes(self) -> int:
        """The most nodes of a draft."""
        candidates = self.width + max(self.max_depth - 1, 0) * self.width**2
        return min(self.num_nodes, candidates) if self.max_depth else 0

    @property
    def max_scored(self) -> int:
        """The most nodes that are scored to draft a tree."""
        return self.width * max(self.max_depth - 1, 0)

    @property
    def branches(self) -> bool:
        """Whether a node may have more than one child."""
        return self.width > 1 and self.max_nodes > 1

    @property
    def num_kept(self) -> int:
        """How many nodes are kept."""
        return self.num_nodes

    def mask_scored(self, level: Level) -> BoolArray:
        """Return ``[B, W]`` bool: which nodes are scored."""
        deeper = (level.depth < np.minimum(level.max_depth, self.max_depth)) & (level.max_nodes > 0)
        chosen = np.zeros(level.number.shape, dtype=np.bool_)
        if not deeper.any():  # then nobody waits for a device to know
            return chosen
        order = np.argsort(-level.confidence, axis=1, kind="stable")
        np.put_along_axis(chosen, order[:, : self.width], True, axis=1)
        scored: BoolArray = chosen & (level.confidence > 0) & deeper[:, None]
        return scored

    def children(self, level: Level, best: Best) -> IntArray:
        """Return ``[B, W]`` how many children each scored node gets."""
        return np.where(level.number >= 0, self.width, 0)
