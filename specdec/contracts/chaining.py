"""The contract of an oracle that drafts chains and trees by itself."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from specdec.contracts.arrays import Float32Array, FloatArray, IntArray
from specdec.contracts.draft import Draft
from specdec.contracts.drawing import Adjustments, ChainKeys, Warping
from specdec.contracts.oracle import Oracle, capability_of


class Draws(NamedTuple):
    """What chains and trees need beside logits.

    Attributes:
        filters: ``[F, B]`` by which laws are made, see ``Warping.filters``.
        keys: by which the ids of B rows are drawn; None: they are not drawn.
    """

    filters: FloatArray
    keys: ChainKeys | None

    def select(self, rows: IntArray) -> "Draws":
        """Return those of some rows ``[R]`` (indices into this batch)."""
        return Draws(self.filters[:, rows], None if self.keys is None else self.keys.select(rows))


# Ids, peaks and laws of drafts that a model made by itself: see ``ChainingOracle.follow_ids`` and ``trees``.
WholeDrafts = tuple[IntArray, Float32Array, Float32Array | None]


class ChainWatch(Protocol):
    """Who decides, between the tokens of chains, how far they go.

    Attributes:
        limits: ``[B]`` tokens of each row. The calls below may lower them, but never below what is already drawn.
        reads_entropy, reads_confidence: which of the two it is told.
    """

    limits: IntArray
    reads_entropy: bool
    reads_confidence: bool

    def before(self, depth: int, entropy: FloatArray) -> None:
        """Learn of the laws that the tokens at a depth would be drawn from.

        Args:
            depth: from 0 on, once each.
            entropy: ``[B]`` float64 in nats, of the model's own law if ids are chosen greedily; 0 in rows that are
                at their limit.
        """

    def after(self, depth: int, confidence: FloatArray) -> None:
        """Learn of the tokens at a depth.

        Args:
            depth: from 0 on, once each.
            confidence: ``[B, depth + 1]`` float64 the probabilities of all tokens so far, under the model's own law
                if ids are chosen greedily; 0 beyond a row's limit.
        """


@dataclass(frozen=True, eq=False)
class TreePlan:
    """The nodes of a tree that is known beforehand; a plan is equal only to itself.

    Args:
        parents: ``[N]`` an earlier node for each node, -1 for the pending token. Nodes come level by level, parents in
            order, siblings side by side.

    Raises:
        ValueError: a parent that is not above its node, or out of order.
    """

    parents: IntArray

    def __post_init__(self) -> None:
        places = np.arange(len(self.parents))
        if not ((self.parents >= -1) & (self.parents < places) & (np.diff(self.parents, prepend=-1) >= 0)).all():
            raise ValueError(f"parents must be -1 or below a node's own index, in order, not {self.parents.tolist()}")

    @cached_property
    def owners(self) -> IntArray:
        """``[N]`` the place of each node's parent among the nodes that have children, the pending token first."""
        owners: IntArray = np.cumsum(np.diff(self.parents, prepend=-1) > 0)
        return owners

    @cached_property
    def depths(self) -> IntArray:
        """``[I]`` the depths of the nodes that have children, 0 for the pending token."""
        inner = self.parents[np.flatnonzero(np.diff(self.parents, prepend=-2))]
        depths = np.zeros_like(inner)
        for place in range(1, len(inner)):
            depths[place] = depths[self.owners[inner[place]]] + 1
        return depths


class ChainingOracle(Oracle, Protocol):
    """An oracle that follows its own ids, greedy or drawn, without being asked for each: see ``Oracle.chains``.

    It takes and returns arrays of the host: who drafts with it goes on with Python's numbers.

    Attributes:
        adjusts: whether it takes ``adjustments``; an oracle that does not say so is given None.
    """

    adjusts: bool

    def follow_ids(
        self,
        ids: IntArray,
        ends: IntArray,
        cache: Any,
        rows: IntArray,
        limits: IntArray,
        watch: ChainWatch | None = None,
        draws: Draws | None = None,
        adjustments: Adjustments | None = None,
    ) -> WholeDrafts:
        """Score the ids whose keys the cache lacks, then follow the likeliest id, or draw one, again and again.

        The likeliest id is the lowest of equal ones, and the first NaN if there is one. A drawn one is drawn from the
        law of the logits after all before it.

        Args:
            ids: ``[B, L]`` that stand. The first ``cache.lengths[rows[b]]`` of a row are those whose keys the cache
                holds, and are not read; nor are those from ``ends[b]`` on.
            ends: ``[B]`` how many ids stand: more than the cache holds if the row drafts, else at least as many.
            cache, rows: see ``Oracle.score``. A row needs slots and positions for its ids, and for all that it drafts
                but the last.
            limits: ``[B]`` how many ids to follow in each row, 1 or more in one of them; with a watch, its limits at
                the start.
            watch: is told what it reads, on the host, and may lower the limits. What it raises is raised here.
            draws: how laws are made of logits, and by which numbers ids are drawn; None, or without keys: ids are the
                likeliest.
            adjustments: what changes logits before that; see ``adjusts``.

        Returns:
            ``[B, N]`` ids, N the largest limit at the end; their logits before adjustments, or the largest logits if
            ids are drawn, NaN if there is one; and, if ids are drawn, ``[B, N, V]`` float32 the laws drawn from,
            uniform if the logits allow none. All are 0 beyond a row's limit.

            If a watch ended all chains before a draw, the logits of that step are a further column: ``[B, N + 1]``. The
            cache keeps the keys of what stands and of all drafted ids but the last of a row; of the last too if it was
            ended before a draw.

        Raises:
            ValueError: a row lacks the room, ``ends`` are out of range, or an id is outside the vocabulary.

        Guarantee: bit for bit what single passes, ``Warping.laws`` and ``Randomness.choose`` give. The cache keeps
            nothing of a call that raises. If ids are not drawn, a watch is told of the model's own law at temperature
            1, before adjustments, in float64.
        Cost: if drawn, O(N V) memory a row for the laws.
        """

    def trees(
        self,
        ids: IntArray,
        ends: IntArray,
        cache: Any,
        rows: IntArray,
        plan: TreePlan,
        limits: IntArray,
        draws: Draws,
        adjustments: Adjustments | None = None,
    ) -> WholeDrafts:
        """Score the ids whose keys the cache lacks, then draft a tree after each row's, level by level.

        Args:
            ids, ends, cache, rows: see ``follow_ids``; a row needs slots for its ids and for the nodes of its tree
                that have children.
            plan: of N nodes, I of which have children, the pending token among them.
            limits: ``[B]`` how many of the plan's nodes, from the first on, each row's tree has; N in one of them.
            draws: how laws are made of logits, and by which numbers children are drawn without replacement. Without
                keys they are the best ids of the law, the lowest of equals; an only child is the likeliest id.
            adjustments: what changes logits before that; see ``adjusts``.

        Returns:
            ``[B, N]`` ids, -1 beyond a row's limit, for children that the law has too few ids for, and below those;
            ``[B, I]`` for each node that has children the largest logit before adjustments, or that of the likeliest id
            if children are not drawn: NaN if there is one, -inf if the row lacks the node; if children were drawn, ``[B
            I, V]`` float32 the laws drawn from, row after row, uniform if the logits allow none, 0 if the row lacks the
            node. The cache keeps the keys of what stands.

        Guarantee: bit for bit what single passes, ``Warping.laws`` and ``Randomness.choose`` give.
        Cost: a pass a level; if drawn, O(I V) memory a row for the laws.
        """


class DeviceChainingOracle(Oracle, Protocol):
    """An oracle whose device follows its likeliest ids without the host: see ``OracleDefaults.chains_on_device``."""

    def device_chains(self, tokens: IntArray, counts: IntArray, cache: Any, rows: IntArray, limits: IntArray) -> Draft:
        """Score ids that stand, arrays of the host, then follow the likeliest id, again and again.

        That is the lowest of equal ones, and the first NaN if there is one.

        Args:
            tokens: ``[B, M]`` the ids of each row that stand and have no keys, M at most ``BITWISE_NODES``; padding may
                be any valid id.
            counts: ``[B]`` how many these are, 1..M.
            cache, rows: see ``Oracle.score``. A row needs slots and positions for its ids, and for all that it drafts
                but the last.
            limits: ``[B]`` how many ids to follow in each row, 1 or more.

        Returns:
            Chains on the oracle's device, in memory that is the caller's: ``[B, N]`` ids, N the largest limit, 0 beyond
            a row's limit, and ``undefined``. The keys of all ids but the last one drafted are left in the cache after
            the prefix: ``cache.commit(rows, None, counts + limits - 1)`` keeps them.

        Raises:
            ValueError: a row lacks the room.

        Guarantee: the ids are those of single passes if the scores are; see ``Oracle.bitwise``.
        Cost: a copy to the device; nothing waits for it.
        """


def can_draft_natively(model: Any, warping: Warping) -> bool:
    """Tell whether a model or head, which says so as ``chains``, drafts by itself with the adjustments of a warping.

    A grammar must be asked for a mask between any two tokens, and compiled code asks nobody.
    """
    if not model.chains or warping.adjustments is None:
        return bool(model.chains)
    return bool(capability_of(model, "adjusts")) and not warping.has_grammars


def can_chain_on_device(model: object, warping: Warping) -> bool:
    """Tell whether a model's or head's device drafts the greedy chains that a warping asks for: of unchanged logits."""
    return bool(capability_of(model, "chains_on_device")) and warping.adjustments is None
