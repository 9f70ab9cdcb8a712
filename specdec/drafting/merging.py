"""Several drafts of the same rows as one tree, with the provenance of every node."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import NEVER, BoolArray, Draft, IntArray, sum_of_stages
from specdec.transfers import HOST, on_device, on_host, stage, together_on_host


def merge(parts: Sequence[Draft], names: Sequence[str]) -> tuple[Draft, list[IntArray]]:
    """Return the drafts side by side below the pending token, in one tree, and where their nodes went.

    A node that was chosen deterministically and whose id an earlier sibling carries already could never be entered: the
    two become one, with the children of both and the provenance of the first. Drawn nodes are never merged or dropped.
    The children of a node are in the order of the parts, and within a part in its own order.

    Args:
        parts: one or more, of the same rows.
        names: who made each part; equal names are told apart by a number. A part that has names of its own keeps them.

    Returns:
        The draft, with ``source``, and for each part ``[B, 1 + N_i]`` the scoring index of the pending token and of
        its nodes (0 for padding).

    Cost: if two parts or more have nodes, one host synchronisation, for the width of the scoring pass, and O(B N)
        host work per node after the first part's; laws are not copied but for one concatenation of their tables.
    """
    live = [i for i, part in enumerate(parts) if part.width]
    graft = _Graft.of(_Host.of_all([parts[i] for i in live])) if len(live) > 1 else None
    device = next((part.tokens.device for part in parts if not part.tokens.is_cpu), HOST)
    of_parts = chain.from_iterable(part.numbers() for part in parts)
    with stage(of_parts, device), stage(() if graft is None else graft.arrays, device):
        return _merge([_place(part, device) for part in parts], names, live, graft)


def _merge(
    parts: Sequence[Draft], names: Sequence[str], live: Sequence[int], graft: "_Graft | None"
) -> tuple[Draft, list[IntArray]]:
    """Return what ``merge`` does of parts that lie on one device; ``live`` have nodes, and are grafted if several."""
    own_names = [part.source_names or (name,) for part, name in zip(parts, names, strict=True)]
    starts = np.cumsum([0, *map(len, own_names)]).tolist()
    parts = [
        replace(part, source=torch.zeros_like(part.tokens) + start if part.source is None else part.source + start)
        for part, start in zip(parts, starts, strict=False)
    ]
    all_names = _distinct([name for own in own_names for name in own])
    told: dict[str, Any] = {
        "source_names": all_names,
        "stages": sum_of_stages(info for part in parts for info in part.stages),
        "undefined": _undefined(parts, [len(own) for own in own_names]),
    }
    batch = len(parts[0].num_nodes)
    places = [np.zeros((batch, 1), dtype=np.int64) for _ in parts]
    if graft is None:
        only = live[0] if live else 0
        places[only] = np.tile(np.arange(parts[only].width + 1), (batch, 1))
        return replace(parts[only], **told), places
    for i, place in zip(live, graft.places, strict=True):
        places[i] = place
    return replace(_gather([parts[i] for i in live], graft), **told), places


def _place(part: Draft, device: torch.device) -> Draft:
    """Return a draft on a device; one without nodes has little to move."""
    if part.width or part.tokens.device == device:
        return part.to(device)
    undefined = None if part.undefined is None else on_device(part.undefined, device)
    none = Draft.empty(len(part.tokens), device)
    return replace(none, undefined=undefined, stages=part.stages, source_names=part.source_names)


def _undefined(parts: Sequence[Draft], num_names: Sequence[int]) -> Tensor | None:
    """Return ``Draft.undefined`` of all sources of the parts; None if no part has any."""
    if all(part.undefined is None for part in parts):
        return None
    given = zip(parts, num_names, strict=True)
    none = [part.num_nodes.new_full((len(part.num_nodes), size), NEVER) for part, size in given]
    columns = [without if part.undefined is None else part.undefined for part, without in zip(parts, none, strict=True)]
    return torch.cat(columns, dim=1)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return distinct names: one that is taken already gets the first number that makes it a new one."""
    taken: dict[str, None] = {}
    for name in names:
        own, number = name, 1
        while own in taken:
            number += 1
            own = f"{name} {number}"
        taken[own] = None
    return tuple(taken)


@dataclass(frozen=True)
class _Host:
    """A draft's tree on the host: ``num_nodes`` ``[B]``, the rest ``[B, N]``.

    ``may_merge`` marks deterministic nodes that are no scouts and that no later sibling was drawn without.
    """

    tokens: IntArray
    parents: IntArray
    num_nodes: IntArray
    is_scout: BoolArray
    may_merge: BoolArray

    @staticmethod
    def of_all(drafts: Sequence[Draft]) -> "list[_Host]":
        """Return the trees of drafts, which come to the host in one copy."""
        packed = together_on_host(*map(_pack, drafts))
        return [_Host.of(on_host(columns), draft.width) for columns, draft in zip(packed, drafts, strict=True)]

    @staticmethod
    def of(packed: IntArray, width: int) -> "_Host":
        """Return the tree of a draft of that width from its columns."""
        tokens, parents, scout, without, point = np.split(packed[:, :-1], 5, axis=1)
        order = np.arange(width)
        later = (parents[:, :, None] == parents[:, None, :]) & (order > order[:, None]) & (without[:, None, :] > 0)
        may_merge = (point > 0) & (scout == 0) & ~later.any(2)
        return _Host(tokens, parents, packed[:, -1], scout > 0, may_merge)


def _pack(draft: Draft) -> Tensor:
    """Return ``[B, 5 N + 1]`` what ``_Host.of`` reads of a draft, where it lies."""
    none = torch.zeros_like(draft.tokens)
    columns = [
        draft.tokens,
        none + torch.arange(-1, draft.width - 1, device=none.device) if draft.parents is None else draft.parents,
        none if draft.is_scout is None else draft.is_scout.long(),
        none if draft.without_replacement is None else draft.without_replacement.long(),
        none + 1 if draft.laws is None else (draft.laws.index < 0).long(),
        draft.num_nodes.unsqueeze(1),
    ]
    return torch.cat(columns, dim=1)


@dataclass(frozen=True)
class _Graft:
    """The places of the nodes of several trees in one, as ``_gather`` needs them.

    Args:
        columns: ``[B, W]`` the column of each node in the parts' concatenation; 0 for padding.
        parents: ``[B, W]``.
        num_nodes: ``[B]``.
        places: see ``merge``.
    """

    columns: IntArray
    parents: IntArray
    num_nodes: IntArray
    places: list[IntArray]

    @property
    def arrays(self) -> tuple[IntArray, ...]:
        """What is read on a device."""
        return self.columns, self.parents, self.num_nodes

    @staticmethod
    def of(trees: Sequence[_Host]) -> "_Graft":
        batch, size = len(trees[0].num_nodes), trees[0].num_nodes.copy()
        offsets = np.cumsum([0, *(tree.tokens.shape[1] for tree in trees)])
        every, order = np.arange(batch), np.arange(offsets[-1])
        tokens, columns = np.zeros((2, batch, offsets[-1]), dtype=np.int64)
        parents = np.tile(order - 1, (batch, 1))
        is_open = np.zeros((batch, offsets[-1]), dtype=np.bool_)  # real and no scout: a twin may join it
        first = slice(0, offsets[1])
        tokens[:, first], columns[:, first], parents[:, first] = trees[0].tokens, order[first], trees[0].parents
        is_open[:, first] = ~trees[0].is_scout
        is_open &= order < size[:, None]
        kept = np.where(order[first] < size[:, None], order[first] + 1, 0)
        places = [np.pad(kept, ((0, 0), (1, 0)))]
        for tree, (start, stop) in zip(trees[1:], pairwise(offsets[1:]), strict=True):
            place = np.zeros((batch, stop - start + 1), dtype=np.int64)
            for node in range(stop - start):
                above, token = place[every, tree.parents[:, node] + 1] - 1, tree.tokens[:, node]
                is_twin = is_open & (parents == above[:, None]) & (tokens == token[:, None])
                joins = is_twin.any(1) & tree.may_merge[:, node]
                is_real = node < tree.num_nodes
                at = np.where(joins, is_twin.argmax(1), size)
                place[:, node + 1] = np.where(is_real, at + 1, 0)
                rows = np.flatnonzero(is_real & ~joins)
                here = (rows, size[rows])
                tokens[here], parents[here], columns[here] = token[rows], above[rows], start + node
                is_open[here] = ~tree.is_scout[rows, node]
                size[rows] += 1
            places.append(place)
        width = int(size.max(initial=0))
        is_real = order[:width] < size[:, None]
        above = np.where(is_real, parents[:, :width], order[:width] - 1)
        return _Graft(np.where(is_real, columns[:, :width], 0), above, size, places)


def _gather(parts: Sequence[Draft], graft: _Graft) -> Draft:
    """Return the draft whose nodes are the columns that ``graft`` names of the parts' concatenation."""
    device = parts[0].tokens.device
    columns, parents, num_nodes = (on_device(values, device) for values in graft.arrays)
    is_chain = bool((graft.parents == np.arange(-1, graft.parents.shape[1] - 1)).all())
    return Draft.of_nodes(parts, columns, None if is_chain else parents, num_nodes)
