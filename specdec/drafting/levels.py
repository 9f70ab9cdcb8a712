"""The nodes of one level of a tree while it is drafted, and the laws of their children."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import BoolArray, Draft, FloatArray, Randomness
from specdec.drafting.growth import Children, Family, Selection
from specdec.laws import Laws
from specdec.transfers import on_device, on_host


@dataclass(frozen=True)
class LevelNodes:
    """The nodes of one level, drawn: tensors ``[B, W]`` on the device; their places are kept elsewhere.

    Attributes:
        tokens: their ids.
        is_real: bool: neither padding nor absent.
        belief: the confidence of each node given its parent; 1 if nobody reads it.
        path_belief: their product along the path.
        parent_slot: see ``specdec.drafting.growth.Places``.
        laws: that the nodes were drawn from; point masses if they were chosen.
    """

    tokens: Tensor
    is_real: Tensor
    belief: Tensor
    path_belief: Tensor
    parent_slot: Tensor
    laws: Laws

    def confidence(self) -> FloatArray:
        """Return ``[B, W]`` the ``confidence`` of ``specdec.drafting.shapes.shape.Level``; waits for the device."""
        values: FloatArray = on_host(self.path_belief * self.is_real)
        return values

    def draft(self, with_confidence: bool) -> Draft:
        """Return the nodes as a draft of their own, all of them real."""
        batch, width = self.tokens.shape
        counts = torch.full((batch,), width, device=self.tokens.device)
        return Draft(self.tokens, counts, laws=self.laws, confidence=self.belief if with_confidence else None)

    def select(self, selection: Selection | None) -> "LevelNodes":
        """Return the selected nodes, padding among them not real; None: all."""
        if selection is None:
            return self
        device = self.tokens.device
        at, stays = on_device(selection.columns, device), on_device(selection.is_chosen, device)
        moved: dict[str, Any] = {name: getattr(self, name).gather(1, at) for name in _OF_NODES}
        moved["is_real"] &= stays
        return LevelNodes(**moved, laws=self.laws.gather(at))


_OF_NODES = ("tokens", "is_real", "belief", "path_belief", "parent_slot")


def pending_level(batch: int, device: torch.device) -> LevelNodes:
    """Return the level of the pending tokens; their ids are not read."""
    token = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    belief = torch.ones(batch, 1, dtype=torch.float64, device=device)
    return LevelNodes(token, belief > 0, belief, belief, token - 1, Laws.points(token))


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

    nodes: LevelNodes
    laws: Laws
    by_rank: bool
    reads_confidence: bool
    warm: Callable[[], Laws]
    # The longest ranking asked for so far, if any.
    _rankings: list[tuple[Tensor, Tensor]] = field(default_factory=list, init=False)

    @cached_property
    def probs(self) -> Tensor:
        """``[B, W, V]`` read-only: the laws that confidences are read from; for a point mass, the warm law."""
        if not self.by_rank:
            return self.laws.dense_view()
        warm = self.warm().dense_view()
        if self.laws.all_points:
            return warm
        own = self.laws.table[self.laws.index.clamp(min=0)]
        return torch.where((self.laws.index < 0).unsqueeze(-1), warm, own)

    def best(self, k: int) -> FloatArray:
        """Return the k largest probabilities, as ``TreeShape.children`` asks for; waits for the device.

        Returns:
            ``[B, W, k]`` float64, largest first; 0 for padding, for absent nodes, and beyond the vocabulary.
        """
        values = self._top_ids(k)[0].double()
        weight = self.nodes.path_belief * self.nodes.is_real
        found: FloatArray = on_host(values * weight.unsqueeze(-1))
        missing = k - found.shape[-1]
        return np.pad(found, ((0, 0), (0, 0), (0, missing))) if missing else found

    def children(self, planned: Children, depth: int, randomness: Randomness) -> LevelNodes:
        """Return the next level: the children of the scored nodes, drawn or chosen.

        Args:
            planned: how many, and where.
            depth: of the scored nodes.
            randomness: of the rows.

        Cost: a draw of O(B W V) for each number of children; nothing waits for the device.
        """
        device = self.laws.index.device
        places = (planned.parent, planned.rank, planned.is_planned, planned.places.parent_slot)
        at, rank, is_planned, parent_slot = (on_device(given, device) for given in places)
        row = torch.arange(len(at), device=device).unsqueeze(1)
        drawn = self._ids(planned.families, planned.is_only, depth, randomness)[row, at, rank]
        is_real = is_planned & self.nodes.is_real.gather(1, at) & (drawn >= 0)
        tokens, laws = drawn.clamp(min=0), self.laws_below(at)
        belief = torch.ones(tokens.shape, dtype=torch.float64, device=device)
        if self.reads_confidence:
            belief = self.probs[row, at, tokens].double().clamp(max=1)
        path_belief = self.nodes.path_belief.gather(1, at) * belief
        return LevelNodes(tokens, is_real, belief, path_belief, parent_slot, Laws(laws.table, laws.index, tokens))

    def laws_below(self, parents: Tensor) -> Laws:
        """Return the laws ``[B, W']`` of children whose parents are the nodes at these places."""
        return self.laws.gather(parents)

    def _ids(self, families: Sequence[Family], is_only: BoolArray, depth: int, randomness: Randomness) -> Tensor:
        """Return ``[B, W, K]`` the children of each node in drawing order, -1 if there are fewer."""
        device = self.laws.index.device
        ids = self._choose(max(family.size for family in families), is_only)
        if self.laws.all_points:
            return ids
        for family in families:
            at, k = on_device(family.columns, device), family.size
            draws = on_device(family.draws, device) & self.nodes.is_real[:, at]
            # Nodes that get another number of children, or are absent, must not draw.
            law = self.laws[:, at].with_points(~draws)
            drawn = randomness.choose(law, family.number, depth, "draft", k).view(*law.shape, k)
            ids[:, at, :k] = torch.where((law.index >= 0).unsqueeze(-1), drawn, ids[:, at, :k])
        return ids

    def _choose(self, k: int, is_only: BoolArray) -> Tensor:
        """Return ``[B, W, K]`` the children that are chosen by rank, -1 if there are fewer, or none is chosen."""
        if not self.by_rank:
            return torch.full((*self.laws.shape, k), -1, device=self.laws.index.device)
        if k == 1:
            return self.laws.point.unsqueeze(-1).clone()
        values, ids = self._top_ids(k)
        ids = torch.nn.functional.pad(torch.where(values > 0, ids, -1), (0, k - ids.shape[-1]), value=-1)
        # Each node for itself: an only child is the likeliest id, whatever its neighbours get.
        ids[..., 0] = torch.where(on_device(is_only, ids.device), self.laws.point, ids[..., 0])
        return ids

    def _top_ids(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the largest of ``probs`` and their ids, ``[B, W, k]``, fewer if there are not that many ids."""
        k = min(k, self.probs.shape[-1])
        if not self._rankings or self._rankings[0][0].shape[-1] < k:
            self._rankings[:] = [top_ids(self.probs, k)]
        values, ids = self._rankings[0]
        return values[..., :k], ids[..., :k]


def top_ids(probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of probabilities ``[..., V]`` in falling order, and their ids, the lowest of equals first.

    Cost: that of ``topk``, which leaves the order of equals open, and on the host a look at its values; a few more
        operations of O(V) if some are equal, and on other devices, where a look would have to wait.
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
