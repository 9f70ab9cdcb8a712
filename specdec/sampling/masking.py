"""The masks of grammars on the logits of nodes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import BoolArray, IntArray
from specdec.transfers import on_host, together_on_device

# Given a row and the drafted ids on a node's path, it returns ``Warping.allowed`` of them.
Allowed = Callable[[int, IntArray], BoolArray | None]


@dataclass(frozen=True)
class NodeMasks:
    """What grammars allow at K nodes of a batch, beside its logits.

    Args:
        places: ``[K]`` of the nodes, row after row.
        allowed: ``[K, V]`` bool.
        forbidden: ``[K]`` the first id that is not allowed; V if all are.
    """

    places: Tensor
    allowed: Tensor
    forbidden: Tensor

    @staticmethod
    def of(rows: IntArray, allowed: Allowed, tokens: Tensor, paths: Tensor, device: torch.device) -> "NodeMasks | None":
        """Return the masks of some rows; None: no node of them has one.

        Args:
            rows: those with grammars.
            allowed: tells what a node's mask is.
            tokens: ``[B, N]`` drafted ids.
            paths: ``[B, M, N]`` bool, which of them lie on the path to each of M nodes.
            device: of the logits.

        Cost: a mask of ``Grammar`` a node, on the host; drafts on a device come there.
        """
        ids, on_path = on_host(tokens), on_host(paths)
        found = [
            (row * on_path.shape[1] + node, mask)
            for row in rows.tolist()
            for node, path in enumerate(on_path[row])
            if (mask := allowed(row, ids[row][path])) is not None
        ]
        if not found:
            return None
        places, masks = zip(*found, strict=True)
        forbidden = [len(mask) if mask.all() else int(mask.argmin()) for mask in masks]
        return NodeMasks(*together_on_device(np.array(places), np.stack(masks), np.array(forbidden), device=device))

    def apply(self, logits: Tensor) -> None:
        """Add -inf to the logits ``[B, M, V]`` of ids that are not allowed, in place; NaN and +inf stay to be found.

        Cost: O(K V).
        """
        bias = torch.full(self.allowed.shape, -torch.inf, dtype=logits.dtype, device=logits.device)
        logits.view(-1, logits.shape[-1]).index_add_(0, self.places, bias.masked_fill_(self.allowed, 0.0))

    def end_dead_nodes(self, logits: Tensor) -> None:
        """Let nodes that have no id left give one that is not allowed, in place.

        Their laws are read, although nobody may get there. Who does is refused as the block is read: see
        ``Grammar.first_end``. A node whose mask forbids nothing stays as it is: the oracle itself allows no id there.

        Cost: O(B M V).
        """
        flat = logits.view(-1, logits.shape[-1])
        dead = (flat.amax(-1)[self.places] == -torch.inf) & (self.forbidden < flat.shape[1])
        at = self.places, self.forbidden.clamp(max=flat.shape[1] - 1)
        flat[at] = torch.where(dead, 0.0, flat[at])
