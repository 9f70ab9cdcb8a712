"""Shapes that are known beforehand: chains, k-ary trees, trees given by their paths."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from specdec.contracts import BoolArray, IntArray, TreePlan
from specdec.drafting.shapes.shape import Best, Level, Path, check_size
from specdec.theory import check_count


class StaticShape(ABC):
    """A shape that is known beforehand: ``paths`` lists its nodes, level by level, as tuples of child ranks."""

    reads_confidence: ClassVar[bool] = False
    num_kept: ClassVar[None] = None

    @property
    @abstractmethod
    def paths(self) -> tuple[Path, ...]:
        """Every node, as the ranks of the siblings on its path."""

    @cached_property
    def parents(self) -> IntArray:
        """``[N]`` the parent of each node, -1 the pending token."""
        place = {path: i for i, path in enumerate(self.paths)}
        return np.array([place[path[:-1]] if len(path) > 1 else -1 for path in self.paths], dtype=np.int64)

    @cached_property
    def ranks(self) -> IntArray:
        """``[N]`` the place of each node among its siblings, from 0."""
        return np.array([path[-1] for path in self.paths], dtype=np.int64)

    @cached_property
    def levels(self) -> IntArray:
        """``[N]`` the depth of each node, from 1, ascending."""
        return np.array([len(path) for path in self.paths], dtype=np.int64)

    @cached_property
    def num_nodes(self) -> int:
        """N, the pending token not counted."""
        return len(self.paths)

    @property
    def max_nodes(self) -> int:
        """The most nodes of a draft."""
        return self.num_nodes

    @cached_property
    def max_depth(self) -> int:
        """The longest path of a draft."""
        return int(self.levels.max(initial=0))

    @property
    def max_scored(self) -> int:
        """The most nodes that are scored to draft a tree."""
        return int((self._num_children[1:] > 0).sum())

    @cached_property
    def branches(self) -> bool:
        """Whether a node may have more than one child."""
        return bool((self.ranks > 0).any())

    @cached_property
    def _num_children(self) -> IntArray:
        """``[N + 1]`` children of the pending token and of each node."""
        return np.bincount(self.parents + 1, minlength=self.num_nodes + 1)

    @cached_property
    def _first_child(self) -> IntArray:
        """``[N + 1]`` the number of each node's first child, or what it would be."""
        return 1 + np.cumsum(self._num_children) - self._num_children

    def _sizes(self, max_depth: IntArray, max_nodes: IntArray) -> IntArray:
        """Return ``[B]`` the nodes of trees cut to their rows' limits.

        Nodes come level by level, so that a limit leaves the first of them.
        """
        whole = self.levels.searchsorted(max_depth, side="right")
        sizes: IntArray = np.maximum(np.minimum(whole, max_nodes), 0)
        return sizes

    def plan(self, max_depth: IntArray, max_nodes: IntArray) -> tuple[TreePlan, IntArray] | None:
        """Return the nodes of the largest tree within the limits, and ``[B]`` how many of them each row has.

        Arguments as in ``TreeShape.plan``.
        """
        if (
            min(max_depth.tolist(), default=0) >= self.max_depth
            and min(max_nodes.tolist(), default=0) >= self.num_nodes
        ):
            return self._plans[self.num_nodes], np.full(len(max_depth), self.num_nodes)
        sizes = self._sizes(max_depth, max_nodes)
        size = max(sizes.tolist(), default=0)
        if size not in self._plans:
            self._plans[size] = TreePlan(self.parents[:size])
        return self._plans[size], sizes

    @cached_property
    def _plans(self) -> dict[int, TreePlan]:
        """Plans by their number of nodes: the whole one, and others as far as they were asked for."""
        return {self.num_nodes: TreePlan(self.parents)}

    def _within(self, level: Level) -> IntArray:
        """Return ``[B, W]`` the children of each node in trees cut to their rows' limits."""
        size = self._sizes(level.max_depth, level.max_nodes)[:, None]
        at = np.maximum(level.number, 0)
        counts = np.clip(size + 1 - self._first_child[at], 0, self._num_children[at])
        return np.where(level.number >= 0, counts, 0)

    def mask_scored(self, level: Level) -> BoolArray:
        """Return ``[B, W]`` bool: which nodes are scored."""
        needed: BoolArray = self._within(level) > 0
        return needed

    def children(self, level: Level, best: Best) -> IntArray:
        """Return ``[B, W]`` how many children each scored node gets."""
        return self._within(level)


@dataclass(frozen=True)
class Chain(StaticShape):
    """A chain of ``length`` tokens; 0 is plain decoding.

    Raises:
        ValueError: a negative number, a fraction, or more than ``MOST_NODES``.
    """

    length: int

    def __post_init__(self) -> None:
        check_count("length", self.length, 0)
        check_size(self.length)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Every node, as the ranks of the siblings on its path: 0 at each depth."""
        return tuple((0,) * depth for depth in range(1, self.length + 1))


@dataclass(frozen=True)
class Kary(StaticShape):
    """A tree in which every node above the last level has ``width`` children: width + ... + width^depth nodes.

    (In ``Grown`` the width is that of a level.)

    Raises:
        ValueError: a width below 1, a negative depth, or more than ``MOST_NODES`` nodes.
    """

    width: int
    depth: int

    def __post_init__(self) -> None:
        check_count("width", self.width, 1)
        check_count("depth", self.depth, 0)
        size, level = 0, 1
        for _ in range(self.depth):
            level *= int(self.width)
            size += level
            check_size(size)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Every node, as the ranks of the siblings on its path, level by level."""
        levels: list[list[Path]] = [[()]]
        for _ in range(self.depth):
            levels.append([(*path, rank) for path in levels[-1] for rank in range(self.width)])
        return tuple(path for level in levels[1:] for path in level)


class Paths(StaticShape):
    """A tree given by its paths: each a tuple of child ranks, as the trees of Medusa and EAGLE are published.

    ``(0,)`` is the first child of the pending token, ``(1, 0)`` the first child of its second child. Prefixes are
    implied, so leaves suffice; the order does not matter. Earlier siblings are not implied: a k-th child is drawn
    after its k - 1 elder ones, and a drawn token cannot be left out.

    Args:
        paths: any number of them; none is plain decoding.

    Raises:
        ValueError: a path that is no tuple, a rank that is no integer or negative, a node whose elder sibling is
            missing, or more than ``MOST_NODES`` nodes.

    Source: Cai et al. 2024 (Medusa, arXiv 2401.10774) and Li et al. 2024 (EAGLE, arXiv 2401.15077) for the notation.
    """

    def __init__(self, paths: Iterable[Iterable[int]]) -> None:
        try:
            given = {tuple(path) for path in paths}
        except TypeError:
            raise ValueError(f"paths must be a list of tuples of child ranks, not {paths!r}") from None
        for path in given:
            for rank in path:
                check_count(f"the ranks of path {path}", rank, 0)
        nodes = {path[:n] for path in given for n in range(1, len(path) + 1)}
        check_size(len(nodes))
        for path in sorted(nodes):
            elder = (*path[:-1], path[-1] - 1)
            if path[-1] and elder not in nodes:
                raise ValueError(
                    f"path {path} needs its elder sibling {elder}: siblings are drawn in order, from rank 0"
                )
        self._paths = tuple(sorted(nodes, key=lambda path: (len(path), path)))

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every node, as the ranks of the siblings on its path, level by level."""
        return self._paths

    def __repr__(self) -> str:
        return f"Paths({list(self._paths)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Paths) and self._paths == other._paths

    def __hash__(self) -> int:
        return hash(self._paths)
