"""Positions and slots of the nodes of a pass, computed on the device from the integers of the call."""

from functools import cached_property

import torch
from torch import Tensor

from oracles.graphed.graphed_memory import Memory
from oracles.graphed.upload import PassIntegers
from oracles.transformer.config import TransformerConfig
from specdec.contracts import ancestors_of


class PassNodes:
    """Positions, trees and slots of the nodes of a pass of static shape.

    Args:
        config: the model's shape.
        packed: the pass's integers, and its shape.
        memory: of the cache.

    Attributes:
        config, memory: as given.
        bucket: the pass's shape.
        rows: ``[R]`` cache rows.
        starts, start: ``[R]`` and ``[R, 1]`` tokens that they hold.
        slots: ``[R, W]``; those of padding may lie beyond the capacity.
        positions: ``[R, W]``; those of padding may lie beyond the context.
        is_real: ``[R, W]``.
        ancestors: ``[R, W, T]`` which nodes are ancestors of each node that attends, itself included; None: chains.
        depth: ``[R, T]``; None: chains.
    """

    def __init__(self, config: TransformerConfig, packed: PassIntegers, memory: Memory) -> None:
        self.config, self.bucket, self.memory, self.rows = config, packed.bucket, memory, packed.rows
        self.starts = packed.starts
        self.start = self.starts.unsqueeze(1)
        index = packed.firsts.unsqueeze(1) + torch.arange(self.bucket.width, device=packed.rows.device)
        self.slots = self.start + index
        self._index, self._parents = index, packed.parents
        self.ancestors, self.depth = _tree(packed.parents, index)
        self.positions = self.start + (
            index if self.depth is None else self.depth.gather(1, _within(index, self.depth))
        )
        self.is_real = index < packed.num_nodes.unsqueeze(1)
        self._lines = self._lines_of(self.slots)

    def _lines_of(self, slots: Tensor) -> Tensor:
        """Return ``[R * W, K]``: the lines of the nodes' keys."""
        heads = torch.arange(self.config.kv_heads, device=slots.device)
        of_row = (self.rows.view(-1, 1, 1) * len(heads) + heads) * self.memory.capacity
        lines = (of_row + slots.unsqueeze(2)).masked_fill_(~self.is_real.unsqueeze(2), self.memory.scratch)
        return lines.flatten(0, 1)

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Cache keys and values ``[R * W, K, D]``: those of real nodes in their slots, others in the scratch line."""
        for lines, new in zip(self.memory.lines[layer], (key, value), strict=True):
            lines.index_put_((self._lines,), new)

    @cached_property
    def above(self) -> Tensor:
        """``[R, W]`` the slot after each node's parent; for a root the first slot, in a chain the node's own."""
        if self._parents is None:
            return self.slots
        return self.start + self._parents.gather(1, _within(self._index, self._parents)) + 1

    @cached_property
    def real_positions(self) -> Tensor:
        """``[R * W]`` positions; -1: the node is padding, and sees nothing."""
        return self.positions.masked_fill(~self.is_real, -1).flatten()

    @cached_property
    def paths(self) -> Tensor | None:
        """``[R * W, T]``: by depth, the nodes on each node's path, and 0 beyond its end; None: chains."""
        if self.ancestors is None or self.depth is None:
            return None
        rows, width, total = self.ancestors.shape
        # What is not on the path goes to a last column, which is cut off.
        depth = torch.where(self.ancestors, self.depth.unsqueeze(1), total)
        node = torch.arange(total, device=depth.device).expand(rows, width, -1)
        paths = node.new_zeros(rows, width, total + 1).scatter_(2, depth, node)
        return paths[..., :total].reshape(rows * width, total).contiguous()


def _tree(parents: Tensor | None, index: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return ``[R, W, T]`` which nodes are above those of ``index`` ``[R, W]``, and ``[R, T]`` depths; None: chains."""
    if parents is None:
        return None, None
    ancestors = ancestors_of(parents)
    own = _within(index, parents).unsqueeze(2).expand(-1, -1, ancestors.shape[2])
    return ancestors.gather(1, own), ancestors.sum(-1) - 1


def _within(index: Tensor, nodes: Tensor) -> Tensor:
    """Return indices clamped so that padding stays within ``nodes`` ``[R, T]``."""
    return index.clamp(max=nodes.shape[1] - 1)
