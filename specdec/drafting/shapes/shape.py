"""Shapes of drafted trees as values: how many children each node gets, given or decided as the tree grows.

A source drafts a tree level by level. Before it draws a level, the shape says which nodes are scored and how many
children each of them gets; every drawn child is kept. Nodes are numbered as they are planned: 0 is the pending token,
then level by level, parents in order, siblings in the order in which they are drawn.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from specdec.contracts import BoolArray, FloatArray, IntArray, TreePlan, check_kind
from specdec.theory import check_count

Path = tuple[int, ...]


@dataclass(frozen=True)
class Level:
    """The nodes of one level, as a shape may look at them; W is the level's width.

    Attributes:
        depth: of these nodes; 0: the pending token alone.
        max_depth: ``[B]`` how deep each row's tree may become.
        max_nodes: ``[B]`` how many nodes each row's tree may have.
        num_planned: ``[B]`` nodes planned so far, absent ones included.
        number: ``[B, W]`` each node's number in its row's tree as that was planned so far, -1 for padding. A shape that
            is known beforehand reads it as the place in its ``paths``, which begin at 1. Whoever gives fewer children
            than such a shape moves the numbers of all later nodes, and must hand it the numbers of the whole tree.
        look: returns ``confidence``.
    """

    depth: int
    max_depth: IntArray
    max_nodes: IntArray
    num_planned: IntArray
    number: IntArray
    look: Callable[[], FloatArray]

    @cached_property
    def confidence(self) -> FloatArray:
        """``[B, W]`` product of the confidences along each node's path; 0 if there is no node.

        Cost: reading it waits for the device.
        """
        return self.look()


Best = Callable[[int], FloatArray]


class TreeShape(Protocol):
    """A way of growing trees; frozen, so that sources can share it.

    A class that names this one as its base need only write what has no default: the bounds, ``mask_scored`` and
    ``children``.
    """

    @property
    def paths(self) -> tuple[Path, ...] | None:
        """Every node, as the ranks of the siblings on its path, if they are known beforehand; else None."""
        return None

    @property
    @abstractmethod
    def max_depth(self) -> int:
        """The longest path ever drafted."""

    @property
    @abstractmethod
    def max_nodes(self) -> int:
        """The most nodes that a draft holds."""

    @property
    @abstractmethod
    def max_scored(self) -> int:
        """The most nodes of a row that are scored to draft a tree, the pending token not counted."""

    @property
    @abstractmethod
    def branches(self) -> bool:
        """Whether a node may have more than one child."""

    @property
    def reads_confidence(self) -> bool:
        """Whether decisions depend on confidences; if not, all are asked for before anything is drawn."""
        return False

    @property
    def num_kept(self) -> int | None:
        """How many of the nodes that were grown are kept, the best by confidence; None: all, which may be drawn."""
        return None

    def plan(self, max_depth: IntArray, max_nodes: IntArray) -> tuple[TreePlan, IntArray] | None:
        """Return the trees of rows with at most that depth ``[B]`` and that many nodes ``[B]``, if ``paths`` tells.

        Returns:
            The nodes of the largest of them, and ``[B]`` how many of these, from the first on, each row's tree has: the
            trees that ``mask_scored`` and ``children`` grow. None if they are decided as they grow.
        """
        return None

    @abstractmethod
    def mask_scored(self, level: Level) -> BoolArray:
        """Return ``[B, W]`` which nodes are to be scored; only they can have children."""

    @abstractmethod
    def children(self, level: Level, best: Best) -> IntArray:
        """Return ``[B, W]`` how many children each of the scored nodes gets.

        Args:
            level: the scored nodes alone.
            best: ``best(k)`` is ``[B, W, k]``, the k largest probabilities of the law that each node's children are
                drawn from, times the node's own confidence. Reading it waits for the device. There is no way to look at
                the children: they are not drawn yet.
        """


_PARTS = (
    *("paths", "max_depth", "max_nodes", "max_scored", "branches", "reads_confidence", "num_kept"),
    *("plan", "mask_scored", "children"),
)


def check_shape(tree: "TreeShape") -> None:
    """Raise ValueError if an argument ``tree`` is no shape of trees, or lacks a part of one."""
    check_kind(tree, "tree", "a shape of trees", _PARTS, "Kary(2, 3), or derive it from TreeShape")
    for bound in ("max_depth", "max_nodes"):
        check_count(f"tree: {bound} of {type(tree).__name__}", getattr(tree, bound), 0)


MOST_NODES = 1024


def check_size(size: int) -> None:
    """Raise ValueError if a tree has more than ``MOST_NODES`` nodes."""
    if size > MOST_NODES:
        raise ValueError(f"a tree of {size} nodes is over the {MOST_NODES} that a pass may hold: make it smaller")
