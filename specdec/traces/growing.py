"""Shapes that are decided as a tree grows, by confidence, grown again over recorded trees."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from specdec.contracts import FloatArray, IntArray
from specdec.drafting.shapes import TreeShape
from specdec.traces.dense import DenseRecords, Path_, paths_of


def nodes_at(records: DenseRecords, at: int) -> Iterator[tuple[int, Path_]]:
    """Yield the nodes of the draft at a position, with the ranks on their paths."""
    yield from enumerate(paths_of(records.parents[at, : records.counts[at]].tolist()))


@dataclass(frozen=True)
class Planned:
    """A node that a shape plans.

    Attributes:
        number: in its tree, from 1; 0: the pending token.
        path: ranks from the root.
        node: of the recorded draft; None: the law had too few ids for it.
        belief: product of the confidences along the path; 0 if there is no node.
    """

    number: int
    path: Path_
    node: int | None
    belief: float


@dataclass(frozen=True)
class RecordedLevel:
    """The nodes of one level of one row; see ``specdec.drafting.shapes.shape.Level``."""

    depth: int
    max_depth: IntArray
    max_nodes: IntArray
    num_planned: IntArray
    nodes: tuple[Planned, ...]

    @property
    def number(self) -> IntArray:
        """``[1, W]`` each node's number in its tree."""
        return np.array([[node.number for node in self.nodes]], dtype=np.int64)

    @property
    def confidence(self) -> FloatArray:
        """``[1, W]`` product of the confidences along each node's path."""
        return np.array([[node.belief for node in self.nodes]], dtype=np.float64)


class Growing:
    """The part of recorded trees that a shape grows.

    Args:
        records: whose tokens were chosen, with confidences.
        shape: asked as a source would ask it.

    Raises:
        ValueError: the records lack what the shape reads.
    """

    def __init__(self, records: DenseRecords, shape: TreeShape) -> None:
        self.records, self.shape, self._paths = records, shape, frozenset(records.paths)
        self._deepest = max(map(len, records.paths), default=0)
        why = f"shape: {shape} is decided as it grows, by confidences"
        if records.confidence is None and records.counts.any():
            raise ValueError(f"{why}, which were not recorded: record_trees(..., confidences=True)")
        if not records.is_chosen:
            raise ValueError(f"{why}: where tokens were drawn, it reads laws that are not recorded: draft greedily")
        if shape.max_depth > self._deepest:
            raise ValueError(f"shape: {shape} has {shape.max_depth} levels, the recorded trees {self._deepest}")

    def nodes(self, at: int) -> list[int]:
        """Return the recorded nodes of the draft at a position that the shape's tree has.

        Raises:
            ValueError: it asks for siblings that were not recorded.
        """
        places = {path: node for node, path in nodes_at(self.records, at)}
        depth = max(map(len, places), default=0)
        # A draft less deep than the record's shape was cut by its budget, which holds for this shape too.
        limit = depth if depth < self._deepest else max(self.shape.max_depth, depth)
        most = self.shape.max_nodes if depth else 0
        level: tuple[Planned, ...] = (Planned(0, (), -1, 1.0),)
        made: list[Planned] = []
        for number in range(limit + 1):
            max_depth, max_nodes, num_planned = (np.array([value]) for value in (limit, most, len(made)))
            level = self._next(RecordedLevel(number, max_depth, max_nodes, num_planned, level), places, at)
            made += level
            if not level:
                break
        real = [node for node in made if node.node is not None]
        if self.shape.num_kept is not None:
            real = sorted(real, key=lambda node: -node.belief)[: min(most, self.shape.num_kept)]
        return sorted(node.node for node in real if node.node is not None)

    def _next(self, level: RecordedLevel, places: dict[Path_, int], at: int) -> tuple[Planned, ...]:
        """Return the children that the shape gives to the nodes of a level."""
        chosen = self.shape.scored(level)[0]
        scored = tuple(node for node, is_scored in zip(level.nodes, chosen, strict=True) if is_scored)
        if not scored:
            return ()
        inner = RecordedLevel(level.depth, level.max_depth, level.max_nodes, level.num_planned, scored)

        def best(k: int) -> FloatArray:
            return np.array([[[self._child(n, rank, places, at).belief for rank in range(k)] for n in scored]])

        counts = self.shape.children(inner, best)[0].tolist()
        first = int(level.num_planned[0]) + 1
        pairs = [(node, rank) for node, count in zip(scored, counts, strict=True) for rank in range(count)]
        return tuple(self._child(node, rank, places, at, first + i) for i, (node, rank) in enumerate(pairs))

    def _child(self, above: Planned, rank: int, places: dict[Path_, int], at: int, number: int = 0) -> Planned:
        """Return the child of that rank of a node; without a node of its own if there was none to record."""
        path = (*above.path, rank)
        if path not in self._paths:
            raise ValueError(f"shape: {self.shape} asks for the node {path}, which the recorded trees lack: record it")
        node = places.get(path) if above.node is not None else None
        if node is None or self.records.confidence is None:
            return Planned(number, path, None, 0.0)
        return Planned(number, path, node, above.belief * float(self.records.confidence[at, node]))
