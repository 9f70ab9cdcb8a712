"""The masks of grammars on the logits of nodes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import BoolArray, IntArray
from specdec.transfers import on_host, together_on_device

# Given a row and the drafted ids on a node's path, it returns ``Warping.allowed_ids`` of them.
Allowed = Callable[[int, IntArray], BoolArray | None]


@dataclass(frozen=True)
class NodeMasks:
    """What grammars allow at K nodes of a batch, on the host.

    Args:
        places: ``[K]`` the nodes' places in logits ``[B M, V]``.
        masks: ``[V]`` bool for each.
    """

    places: IntArray
    masks: tuple[BoolArray, ...]

    @staticmethod
    def of(
        rows: IntArray, allowed: Allowed, tokens: Tensor, paths: Tensor, num_nodes: Tensor | None
    ) -> "NodeMasks | None":
        """Return the masks of some rows; None: no node of them has one.

        Args:
            rows: those with grammars.
            allowed: tells what a node's mask is.
            tokens: ``[B, N]`` drafted ids.
            paths: ``[B, M, N]`` bool, which of them lie on the path to each of M nodes.
            num_nodes: ``[B]`` how many of the nodes are real, the others being padding, which has no mask; None: all.

        Cost: a mask of ``Grammar`` a node; drafts on a device come to the host.
        """
        ids, on_path = on_host(tokens), on_host(paths)
        ends = [None] * len(ids) if num_nodes is None else on_host(num_nodes).tolist()
        found = [
            (row * on_path.shape[1] + node, mask)
            for row in rows.tolist()
            for node, path in enumerate(on_path[row, : ends[row]])
            if (mask := allowed(row, ids[row][path])) is not None
        ]
        if not found:
            return None
        places, masks = zip(*found, strict=True)
        return NodeMasks(np.array(places), masks)

    def apply(self, logits: Tensor) -> None:
        """Subtract infinity from the logits ``[B, M, V]`` of ids that are not allowed, in place.

        NaN and +inf stay NaN, to be found.

        Cost: O(K V); on the host by numpy, whose loops need no threads that others may hold.
        """
        flat = logits.detach().view(-1, logits.shape[-1])
        if flat.is_cpu:
            with np.errstate(invalid="ignore"):
                values = on_host(flat)
                for place, mask in zip(self.places, self.masks, strict=True):
                    np.subtract(values[place], np.inf, out=values[place], where=~mask)
            return
        places, allowed = together_on_device(self.places, np.stack(self.masks), device=flat.device)
        bias = torch.full(allowed.shape, -torch.inf, dtype=flat.dtype, device=flat.device)
        flat.index_add_(0, places, bias.masked_fill_(allowed, 0.0))

    def end_dead_nodes(self, logits: Tensor) -> None:
        """Let nodes that have no id left in logits ``[B, M, V]`` give the first one that is not allowed, in place.

        Their laws are read even if no walk gets there. A walk that does is refused when its block is read: see
        ``Grammar.first_end``. A node whose mask forbids nothing stays as it is: the oracle itself allows no id there.

        Cost: O(K V), on a device O(B M V).
        """
        flat = logits.detach().view(-1, logits.shape[-1])
        some = np.array([not mask.all() for mask in self.masks])
        first = np.array([int(mask.argmin()) for mask in self.masks])
        if flat.is_cpu:
            values = on_host(flat)
            for place, token in zip(self.places[some], first[some], strict=True):
                if values[place].max() == -np.inf:
                    values[place, token] = 0.0
            return
        places, ids = together_on_device(self.places[some], first[some], device=flat.device)
        dead = flat.amax(-1)[places] == -torch.inf
        flat[places, ids] = torch.where(dead, 0.0, flat[places, ids])
