"""Length policies and tree shapes, asked again over recorded drafts as a source would ask them."""

from dataclasses import dataclass

import numpy as np

from specdec.contracts import Budget, FloatArray, IntArray
from specdec.drafting import ScoredLevel, growth
from specdec.drafting.lengths import LengthPolicy, LengthSession, cut_limits, depth_limits
from specdec.drafting.shapes import TreeShape
from specdec.traces.dense import DenseRecords, Path_


def check_length(records: DenseRecords, length: LengthPolicy) -> None:
    """Raise ValueError if the records lack what a policy asks for."""
    if not records.is_chain:
        raise ValueError("length: the recorded drafts branch, and a length cuts chains: give shape, or record chains")
    if length.max_depth > len(records.paths):
        raise ValueError(
            f"length drafts up to {length.max_depth} tokens, but the record holds drafts of {len(records.paths)}: "
            f"record with num_draft_tokens={length.max_depth}, or give a policy that stays within"
        )
    if length.reads_entropy and records.entropy is None:
        raise ValueError("length reads entropies, which were not recorded: record with entropies=True")
    if length.reads_confidence and records.confidence is None and records.counts.any():
        raise ValueError(
            "length reads confidences, and the recorded drafts carry none, or others than the probabilities that "
            "tokens were drawn with"
        )


def cut(
    session: LengthSession,
    rows: IntArray,
    committed: IntArray,
    counts: IntArray,
    confidence: FloatArray | None,
    entropy: FloatArray | None,
) -> IntArray:
    """Return ``[B]`` how many tokens of some chains a policy keeps.

    Args:
        session: the policy's.
        rows: ``[B]`` slots of it.
        committed: ``[B]`` ids that stand.
        counts: ``[B]`` tokens of the chains.
        confidence, entropy: ``[B, N]`` of the tokens, and of the laws that they were drawn from; None: not recorded.
    """
    policy = session.policy
    limits = depth_limits(session, rows, committed, Budget(counts, counts))
    depth = 0
    while depth < limits.max(initial=0):
        if policy.reads_entropy and entropy is not None:
            limits = cut_limits(session, limits, depth, session.draws(rows, entropy[:, depth]))
        depth += 1
        if policy.reads_confidence and confidence is not None and depth <= limits.max(initial=0):
            limits = cut_limits(session, limits, depth, session.continues(rows, confidence[:, :depth]))
    session.note_counts(rows, limits)
    return limits


@dataclass(frozen=True)
class PlannedNode:
    """A node that a shape plans.

    Attributes:
        path: ranks from the root.
        node: of the recorded draft, -1 for the pending token; None: the law had too few ids for it.
        belief: product of the confidences along the path; 0 if there is no node.
    """

    path: Path_
    node: int | None
    belief: float


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
        places = self.records.places(at)
        depth = max(map(len, places), default=0)
        # A draft less deep than the record's shape was cut by its budget, which holds for this shape too.
        limit = depth if depth < self._deepest else max(self.shape.max_depth, depth)
        most = self.shape.max_nodes if depth else 0
        level, made = [PlannedNode((), -1, 1.0)], list[PlannedNode]()

        def nodes_of(scored: ScoredLevel) -> list[PlannedNode]:
            chosen = scored.selection
            return level if chosen is None else [level[i] for i in chosen.columns[chosen.is_chosen].tolist()]

        def best(scored: ScoredLevel, k: int) -> FloatArray:
            return np.array([[[self._child(n, i, places, at).belief for i in range(k)] for n in nodes_of(scored)]])

        def look() -> FloatArray:
            return np.array([[node.belief for node in level]])

        for step in growth(self.shape, np.array([limit]), np.array([most]), look, best):
            if step.children is not None:
                above, (parents,), (ranks,) = nodes_of(step.scored), step.children.parent, step.children.rank
                level = [self._child(above[p], r, places, at) for p, r in zip(parents, ranks.tolist(), strict=True)]
                made += level
        real = [node for node in made if node.node is not None]
        if self.shape.num_kept is not None:
            real = sorted(real, key=lambda node: -node.belief)[: min(most, self.shape.num_kept)]
        return sorted(node.node for node in real if node.node is not None)

    def _child(self, above: PlannedNode, rank: int, places: dict[Path_, int], at: int) -> PlannedNode:
        """Return the child of that rank of a node; without a node of its own if there was none to record."""
        path = (*above.path, rank)
        if path not in self._paths:
            raise ValueError(f"shape: {self.shape} asks for the node {path}, which the recorded trees lack: record it")
        node = places.get(path) if above.node is not None else None
        if node is None or self.records.confidence is None:
            return PlannedNode(path, None, 0.0)
        return PlannedNode(path, node, above.belief * float(self.records.confidence[at, node]))
