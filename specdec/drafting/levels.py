"""The nodes of one level of a tree while it is drafted, and the laws of their children."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import BoolArray, Draft, FloatArray, IntArray, Randomness
from specdec.laws import Laws
from specdec.transfers import listed, on_device, on_host, stage, together_on_device


@dataclass(frozen=True)
class Nodes:
    """The nodes of one level; see ``specdec.shapes.shape.Level``.

    Attributes:
        slot: ``[B, W]`` place among the nodes of all levels, padding and absent ones included; -1: the pending token.
        parent_slot: ``[B, W]`` that of the parent.
        above: ``[B, W]`` the parent's place among the scored nodes, -1 if it is the pending token.
        tokens: ``[B, W]`` on the device.
        is_real: ``[B, W]`` bool, on the device: neither padding nor absent.
        belief: ``[B, W]`` the confidence of each node given its parent; 1 if nobody reads it.
        path_belief: ``[B, W]`` their product along the path.
        laws: ``[B, W]`` that the nodes were drawn from; point masses if they were chosen.
    """

    depth: int
    max_depth: IntArray
    max_nodes: IntArray
    num_planned: IntArray
    number: IntArray
    slot: IntArray
    parent_slot: IntArray
    above: IntArray
    tokens: Tensor
    is_real: Tensor
    belief: Tensor
    path_belief: Tensor
    laws: Laws

    @cached_property
    def confidence(self) -> FloatArray:
        """``[B, W]`` product of the confidences along each node's path, as ``Level`` says; waits for the device."""
        values: FloatArray = on_host(self.path_belief * self.is_real)
        return values

    def draft(self, with_confidence: bool) -> Draft:
        """Return the nodes as a draft of their own, all of them real."""
        batch, width = self.tokens.shape
        counts = torch.full((batch,), width, device=self.tokens.device)
        return Draft(self.tokens, counts, laws=self.laws, confidence=self.belief if with_confidence else None)

    def select(self, chosen: BoolArray) -> "Nodes":
        """Return the ``chosen`` ``[B, W]`` nodes side by side, padded to the row that has most."""
        if chosen.all():
            return self
        columns = np.argsort(~chosen, axis=1, kind="stable")[:, : int(chosen.sum(1).max())]
        is_chosen = np.take_along_axis(chosen, columns, 1)
        at, stays = together_on_device(columns, is_chosen, device=self.tokens.device)
        moved: dict[str, Any] = {
            name: np.where(is_chosen, np.take_along_axis(getattr(self, name), columns, 1), -1) for name in _ON_HOST
        }
        moved |= {name: getattr(self, name).gather(1, at) for name in _ON_DEVICE}
        moved["is_real"] &= stays
        return replace(self, **moved, laws=self.laws.gather(at))


# What a level holds of each node, beside the laws: -1 stands for no node on the host.
_ON_HOST = ("number", "slot", "parent_slot", "above")
_ON_DEVICE = ("tokens", "is_real", "belief", "path_belief")


def pending_level(max_depth: IntArray, max_nodes: IntArray, device: torch.device) -> Nodes:
    """Return the level of the pending token; its id is not read."""
    batch = len(max_depth)
    number, none = np.zeros((batch, 1), dtype=np.int64), np.full((batch, 1), -1)
    token = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    belief, planned = torch.ones(batch, 1, dtype=torch.float64, device=device), np.zeros_like(max_depth)
    limits = (max_depth, max_nodes, planned)
    return Nodes(0, *limits, number, none, none, none, token, belief > 0, belief, belief, Laws.points(token))


@dataclass(frozen=True)
class _Family:
    """The nodes of a level that get the same number of children, on the host.

    Attributes:
        size: that number.
        columns: ``[C]`` where in the level there are such nodes.
        draws: ``[B, C]`` bool: which of these nodes are such.
        number: ``[B, C]`` theirs.
    """

    size: int
    columns: IntArray
    draws: BoolArray
    number: IntArray

    @staticmethod
    def of(size: int, counts: IntArray, number: IntArray) -> "_Family":
        """Return the family of a size, from the counts ``[B, W]`` of a level and its nodes' numbers."""
        columns = np.flatnonzero((counts == size).any(0))
        return _Family(size, columns, (counts == size)[:, columns], number[:, columns])

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What drawing reads."""
        return self.columns, self.draws, self.number


@dataclass(frozen=True)
class Candidates:
    """Scored nodes, and the laws that their children are drawn or chosen from.

    Attributes:
        nodes: ``[B, W]`` the scored nodes.
        laws: ``[B, W]`` of their children.
        by_rank: some laws may be point masses: then children are chosen by rank.
        reads_confidence: beliefs are asked for.
        warm: returns the laws ``[B, W]`` that all rows would have at temperature 1.
    """

    nodes: Nodes
    laws: Laws
    by_rank: bool
    reads_confidence: bool
    warm: Callable[[], Laws]

    @cached_property
    def probs(self) -> Tensor:
        """``[B, W, V]`` the laws, to be read only, by which confidences go; for a point mass the warm one."""
        if not self.by_rank:
            return self.laws.seen()
        warm = self.warm().seen()
        if self.laws.all_points:
            return warm
        own = self.laws.table[self.laws.index.clamp(min=0)]
        return torch.where((self.laws.index < 0).unsqueeze(-1), warm, own)

    def best(self, k: int) -> FloatArray:
        """Return the k largest probabilities, as ``TreeShape.children`` asks for; waits for the device."""
        values = self._ranked(k)[0].double()
        weight = self.nodes.path_belief * self.nodes.is_real
        found: FloatArray = on_host(values * weight.unsqueeze(-1))
        missing = k - found.shape[-1]
        return np.pad(found, ((0, 0), (0, 0), (0, missing))) if missing else found

    def children(self, counts: IntArray, first: int, num_slots: int, randomness: Randomness) -> Nodes:
        """Return the next level: so many children of each node, drawn or chosen.

        Args:
            counts: ``[B, W]``.
            first: place of the nodes among the scored ones.
            num_slots: slots that are taken.
            randomness: of the rows.

        Cost: a draw of O(B W V) for each number of children; nothing waits for the device.
        """
        nodes, device = self.nodes, self.laws.index.device
        rows, ends = np.arange(len(counts))[:, None], counts.cumsum(1)
        total, order = ends[:, -1], np.arange(int(ends[:, -1].max()))
        parent = np.minimum((ends[:, None] <= order[:, None]).sum(2), counts.shape[1] - 1)  # [B, W']
        rank = order - (ends - counts)[rows, parent]
        is_planned = order < total[:, None]
        rank = np.where(is_planned, rank, 0)
        families = [_Family.of(k, counts, nodes.number) for k in listed(np.unique(counts[counts > 0]))]
        is_only, of_families = counts == 1, (array for family in families for array in family.arrays)
        with stage((rows, parent, rank, is_planned, is_only, *of_families), device):
            row, at, ranks, planned = (on_device(places, device) for places in (rows, parent, rank, is_planned))
            drawn = self._ids(families, is_only, randomness)[row, at, ranks]
        is_real = planned & nodes.is_real.gather(1, at) & (drawn >= 0)
        tokens, laws = drawn.clamp(min=0), self.laws_below(at)
        belief = torch.ones(tokens.shape, dtype=torch.float64, device=device)
        if self.reads_confidence:
            belief = self.probs[row, at, tokens].double().clamp(max=1)
        return Nodes(
            nodes.depth + 1,
            nodes.max_depth,
            nodes.max_nodes,
            nodes.num_planned + total,
            number=np.where(is_planned, nodes.num_planned[:, None] + 1 + order, -1),
            slot=np.broadcast_to(num_slots + order, parent.shape),
            parent_slot=nodes.slot[rows, parent],
            above=first + parent if nodes.depth else np.full_like(parent, -1),
            tokens=tokens,
            is_real=is_real,
            belief=belief,
            path_belief=nodes.path_belief.gather(1, at) * belief,
            laws=Laws(laws.table, laws.index, tokens),
        )

    def laws_below(self, parents: Tensor) -> Laws:
        """Return the laws ``[B, W']`` of children whose parents are the nodes at these places."""
        return self.laws.gather(parents)

    def _ids(self, families: Sequence["_Family"], is_only: BoolArray, randomness: Randomness) -> Tensor:
        """Return ``[B, W, K]`` the children of each node in drawing order, -1 if there are fewer."""
        device = self.laws.index.device
        ids = self._chosen(max(family.size for family in families), is_only)
        if self.laws.all_points:
            return ids
        for family in families:
            at, k = on_device(family.columns, device), family.size
            draws = on_device(family.draws, device) & self.nodes.is_real[:, at]
            # Nodes that get another number of children, or are absent, must not draw.
            law = self.laws[:, at].pointed(~draws)
            drawn = randomness.choose(law, family.number, self.nodes.depth, "draft", k).view(*law.shape, k)
            ids[:, at, :k] = torch.where((law.index >= 0).unsqueeze(-1), drawn, ids[:, at, :k])
        return ids

    def _chosen(self, k: int, is_only: BoolArray) -> Tensor:
        """Return ``[B, W, K]`` the children that are chosen by rank, -1 if there are fewer, or none is chosen."""
        if not self.by_rank:
            return torch.full((*self.laws.shape, k), -1, device=self.laws.index.device)
        if k == 1:
            return self.laws.point.unsqueeze(-1).clone()
        values, ids = self._ranked(k)
        ids = torch.nn.functional.pad(torch.where(values > 0, ids, -1), (0, k - ids.shape[-1]), value=-1)
        # Each node for itself: an only child is the likeliest id, whatever its neighbours get.
        ids[..., 0] = torch.where(on_device(is_only, ids.device), self.laws.point, ids[..., 0])
        return ids

    def _ranked(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the largest of ``probs`` and their ids, ``[B, W, k]``, fewer if there are not so many ids."""
        k = min(k, self.probs.shape[-1])
        if not self._rankings or self._rankings[0][0].shape[-1] < k:
            self._rankings[:] = [ranked(self.probs, k)]
        values, ids = self._rankings[0]
        return values[..., :k], ids[..., :k]

    @cached_property
    def _rankings(self) -> list[tuple[Tensor, Tensor]]:
        """The longest ranking asked for so far, if any."""
        return []


def ranked(probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of probabilities ``[..., V]`` in falling order, and their ids, the lowest of equals first.

    Cost: that of ``topk``, which leaves the order of equals open, and on the host a look at its values; a few
        operations of O(V) more if some are equal, and on other devices, where a look would have to wait.
    """
    size = probs.shape[-1]
    if probs.device.type == "cpu":
        values, ids = probs.topk(min(k + 1, size))
        if not bool(((values[..., 1:] == values[..., :-1]) & (values[..., 1:] > 0)).any()):
            return values[..., :k], ids[..., :k]
    values, ids = probs.topk(k)
    last, columns = values[..., -1:], torch.arange(size, device=probs.device)
    lowest = torch.where(probs == last, columns, size).topk(k, largest=False).values
    is_above = values > last
    at = torch.arange(k, device=probs.device) - is_above.sum(-1, keepdim=True)
    ids, order = torch.where(is_above, ids, lowest.gather(-1, at.clamp(min=0))).sort(-1)
    values, order = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)
