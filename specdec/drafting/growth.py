"""How a tree grows, level by level, on the host: which nodes are scored, and where their children are.

A shape that reads no confidence decides all of it before anything is drawn; one that reads confidences decides after it
has looked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import BoolArray, FloatArray, IntArray
from specdec.drafting.shapes import Level, TreeShape


@dataclass(frozen=True)
class Places(Level):
    """The nodes of one level, and where they are; -1: no node.

    Attributes:
        slot: ``[B, W]`` place among the nodes of all levels, padding and absent ones included; -1: the pending token.
        parent_slot: ``[B, W]`` that of the parent.
        above: ``[B, W]`` the parent's place among the scored nodes, -1 if it is the pending token.
    """

    slot: IntArray
    parent_slot: IntArray
    above: IntArray

    def select(self, chosen: BoolArray) -> tuple["Places", "Selection | None"]:
        """Return the ``chosen`` ``[B, W]`` nodes side by side, padded to the row that has most; None: they are all."""
        if chosen.all():
            return self, None
        columns = np.argsort(~chosen, axis=1, kind="stable")[:, : int(chosen.sum(1).max())]
        selection = Selection(columns, np.take_along_axis(chosen, columns, 1))
        moved: dict[str, Any] = {name: selection.of(getattr(self, name), -1) for name in _OF_NODES}
        return replace(self, **moved, look=lambda: selection.of(self.confidence, 0)), selection


_OF_NODES = ("number", "slot", "parent_slot", "above")


@dataclass(frozen=True)
class Selection:
    """Some nodes of a level, side by side.

    Attributes:
        columns: ``[B, W]`` where they were.
        is_chosen: ``[B, W]`` bool: False for padding.
    """

    columns: IntArray
    is_chosen: BoolArray

    def of(self, values: NDArray[Any], none: int) -> NDArray[Any]:
        """Return the selected ones of values ``[B, ...]`` of a level, ``none`` for padding."""
        return np.where(self.is_chosen, np.take_along_axis(values, self.columns, 1), none)


@dataclass(frozen=True)
class ScoredLevel:
    """The nodes of a level that are scored.

    Attributes:
        places: theirs.
        selection: of the level's nodes; None: they are all.
        parents: ``[B, M]`` of all nodes that were or are scored, -1 for children of the pending token and for padding.
        first: how many of these were scored before.
        live: indices of the rows that take part.
    """

    places: Places
    selection: Selection | None
    parents: IntArray
    first: int
    live: IntArray

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What is read on a device: ``parents`` ``[B, M]``, and the two ``[B, W]`` of the selection if there is one."""
        selection = () if self.selection is None else (self.selection.columns, self.selection.is_chosen)
        return self.parents, *selection


@dataclass(frozen=True)
class Family:
    """The nodes of a level that get the same number of children.

    Attributes:
        size: that number.
        columns: ``[C]`` the columns of the scored nodes that have such nodes.
        draws: ``[B, C]`` bool: which nodes in these columns they are.
        number: ``[B, C]`` the numbers of the nodes.
    """

    size: int
    columns: IntArray
    draws: BoolArray
    number: IntArray

    @staticmethod
    def of(size: int, counts: IntArray, number: IntArray) -> "Family":
        """Return the family of a size, from the counts ``[B, W]`` of a level and its nodes' numbers."""
        columns = np.flatnonzero((counts == size).any(0))
        return Family(size, columns, (counts == size)[:, columns], number[:, columns])


@dataclass(frozen=True)
class Children:
    """The next level, before it is drawn.

    Attributes:
        places: of the children ``[B, W']``.
        parent, rank: ``[B, W']`` the parent's column among the scored nodes ``[B, W]``, and the place among its
            children.
        is_planned: ``[B, W']`` bool: False for padding.
        is_only: ``[B, W]`` bool: which scored nodes get a single child.
        families: the scored nodes by their number of children.
    """

    places: Places
    parent: IntArray
    rank: IntArray
    is_planned: BoolArray
    is_only: BoolArray
    families: tuple[Family, ...]

    @staticmethod
    def of(scored: ScoredLevel, counts: IntArray, num_slots: int, look: Callable[[], FloatArray]) -> "Children":
        """Return ``counts`` ``[B, W]`` children of each scored node, in slots from ``num_slots`` on."""
        nodes = scored.places
        rows, ends = np.arange(len(counts))[:, None], counts.cumsum(1)
        total, order = ends[:, -1], np.arange(int(ends[:, -1].max()))
        parent = np.minimum((ends[:, None] <= order[:, None]).sum(2), counts.shape[1] - 1)
        is_planned = order < total[:, None]
        places = Places(
            nodes.depth + 1,
            nodes.max_depth,
            nodes.max_nodes,
            nodes.num_planned + total,
            number=np.where(is_planned, nodes.num_planned[:, None] + 1 + order, -1),
            slot=np.broadcast_to(num_slots + order, parent.shape),
            parent_slot=nodes.slot[rows, parent],
            above=scored.first + parent if nodes.depth else np.full_like(parent, -1),
            look=look,
        )
        families = (Family.of(k, counts, nodes.number) for k in np.unique(counts[counts > 0]).tolist())
        rank = np.where(is_planned, order - (ends - counts)[rows, parent], 0)
        return Children(places, parent, rank, is_planned, counts == 1, tuple(families))

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What is read on a device.

        ``parent``, ``rank`` and ``is_planned`` ``[B, W']``, ``is_only`` ``[B, W]``, the parents' slots ``[B, W']``, and
        of each family the columns ``[C]``, draws and numbers ``[B, C]``.
        """
        of_families = (array for family in self.families for array in (family.columns, family.draws, family.number))
        return self.parent, self.rank, self.is_planned, self.is_only, self.places.parent_slot, *of_families


@dataclass(frozen=True)
class Step:
    """One level of growth: what is scored, and its children; None: there are none, and the tree ends."""

    scored: ScoredLevel
    children: Children | None

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What is read on a device: see ``ScoredLevel.arrays`` and ``Children.arrays``."""
        return self.scored.arrays + (() if self.children is None else self.children.arrays)


def growth(
    shape: TreeShape,
    max_depth: IntArray,
    max_nodes: IntArray,
    look: Callable[[], FloatArray],
    best: Callable[[ScoredLevel, int], FloatArray],
) -> Iterator[Step]:
    """Yield the steps in which trees grow within a depth ``[B]`` and a number of nodes ``[B]``.

    Args:
        shape, max_depth, max_nodes: see above.
        look: returns ``[B, W]`` the ``Level.confidence`` of the level that was drawn last; waits for the device.
        best: returns what ``TreeShape.children`` is given, for nodes that follow those of the last step; waits too.

    A step must be drawn before the next one is asked for, unless the shape reads no confidence: then nothing is looked
    at.

    Raises:
        ValueError: a shape that says that it reads no confidence looks at some.
    """
    if not shape.reads_confidence:
        look = best = partial(_refuse_look, shape)
    level, parents, num_slots = _pending(max_depth, max_nodes), np.zeros((len(max_depth), 0), dtype=np.int64), 0
    while (chosen := shape.mask_scored(level)).any():
        places, selection = level.select(chosen)
        first = parents.shape[1]
        if level.depth:
            parents = np.concatenate([parents, places.above], axis=1)
        scored = ScoredLevel(places, selection, parents, first, np.flatnonzero(chosen.any(1)))
        counts = np.where(places.number >= 0, shape.children(places, partial(best, scored)), 0)
        if not counts.any():
            yield Step(scored, None)
            return
        children = Children.of(scored, counts, num_slots, look)
        yield Step(scored, children)
        level, num_slots = children.places, num_slots + children.parent.shape[1]


def _refuse_look(shape: TreeShape, *_: object) -> FloatArray:
    raise ValueError(
        f"tree={shape} looks at confidences, but its reads_confidence is False, so that there are none yet: set "
        "reads_confidence = True"
    )


def _pending(max_depth: IntArray, max_nodes: IntArray) -> Places:
    """Return the places of the pending tokens."""
    number = np.zeros((len(max_depth), 1), dtype=np.int64)
    none = np.full_like(number, -1)
    none_planned, all_ones = np.zeros_like(max_depth), partial(np.ones, number.shape)
    return Places(0, max_depth, max_nodes, none_planned, number, all_ones, none, none, none)
