"""Token trees: depths, ancestors and paths, computed for a whole batch without a loop over rows.

The one shift between draft nodes and scored nodes is here (``with_root``). Everything after a draft, from scoring to
the record of the step, counts scored nodes: node 0 is the pending token, draft node i is node i + 1.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from specdec.contracts.arrays import IntArray
from specdec.transfers import on_device, on_host, stage


def ancestors_of(parents: Tensor) -> Tensor:
    """Return ``[B, M, M]`` bool: entry (i, j) tells whether node j is node i or one of its ancestors.

    Args:
        parents: ``[B, M]`` int64, -1 for roots, else smaller than the node's own index.

    Cost: O(B M^3 log M) arithmetic by repeated squaring of the parent relation; M is a draft's width.
    """
    size = parents.shape[1]
    reach = torch.eye(size + 1, device=parents.device).expand(parents.shape[0], -1, -1).clone()
    # A parent of -1 points at column 0, an extra node above all roots, which is cut off again.
    reach[:, 1:].scatter_(2, (parents + 1).unsqueeze(2), 1.0)
    for _ in range(max(size, 1).bit_length()):
        reach = (reach @ reach).clamp(max=1)
    return reach[:, 1:, 1:] > 0


def is_chain(parents: Tensor | None) -> bool:
    """Tell whether every row of parents ``[B, N]`` is a chain: node i hangs on node i - 1 (None stands for chains).

    Parents on another device than the host are not read, which would wait for it: they count as a tree.
    """
    if parents is None:
        return True
    if not parents.is_cpu:
        return False
    above = on_host(parents)
    if above.size and above.shape[1] > 1 and above[0, 1] != 0:  # true of most trees, and quick to tell
        return False
    return bool((above == np.arange(-1, above.shape[1] - 1)).all())


@dataclass(frozen=True)
class Tree:
    """A scoring call's nodes; what follows from them is computed once, when it is first asked for.

    In the engine's calls node 0 is the pending token, the only root. A draft does not know that token: its tree has 0
    in that place.

    Args:
        tokens: ``[B, M]`` int64.
        parents: ``[B, M]`` int64, -1 for roots; None for chains.
        num_nodes: ``[B]`` int64, roots included.
    """

    tokens: Tensor
    parents: Tensor | None
    num_nodes: Tensor

    @property
    def size(self) -> int:
        """M, padding included."""
        return self.tokens.shape[1]

    def to(self, device: torch.device) -> "Tree":
        """Return the nodes on a device; what must go there goes in one copy."""
        if self.tokens.device == device:
            return self
        with stage((self.tokens, self.parents, self.num_nodes), device):
            parents = None if self.parents is None else on_device(self.parents, device)
            return Tree(on_device(self.tokens, device), parents, on_device(self.num_nodes, device))

    @cached_property
    def above(self) -> Tensor:
        """``[B, M - 1]`` int64: the parent of every node but the root."""
        if self.parents is None:
            return torch.arange(self.size - 1, device=self.tokens.device).expand(len(self.tokens), -1)
        return self.parents[:, 1:]

    @cached_property
    def ancestors(self) -> Tensor:
        """``[B, M, M]`` bool: entry (i, j) tells whether node j is node i or one of its ancestors.

        Cost: that of ``ancestors_of``, once; O(M^2) for chains.
        """
        batch, size = self.tokens.shape
        if self.parents is None:
            return torch.ones(size, size, dtype=torch.bool, device=self.tokens.device).tril().expand(batch, -1, -1)
        return ancestors_of(self.parents)

    @cached_property
    def depth(self) -> Tensor:
        """``[B, M]`` int64: 0 for a root. Cost: for trees, that of ``ancestors``."""
        if self.parents is None:
            return torch.arange(self.size, device=self.tokens.device).expand(self.tokens.shape)
        return self.ancestors.sum(-1) - 1

    @cached_property
    def is_real(self) -> Tensor:
        """``[B, M]`` bool: False for padding."""
        return torch.arange(self.size, device=self.tokens.device) < self.num_nodes.unsqueeze(1)

    def path(self, stop: Tensor) -> Tensor:
        """Return ``[B, M]`` node indices from the root to ``stop[b]``, then arbitrary ones (depth[stop] + 1 count).

        Cost: nothing for chains; else O(B M^2), after ``ancestors``.
        """
        if self.parents is None:
            return torch.arange(self.size, device=stop.device).expand(self.tokens.shape)
        at = stop.view(-1, 1, 1).expand(-1, 1, self.size)
        on_path = self.ancestors.gather(1, at).squeeze(1)
        return (~on_path).long().argsort(dim=1, stable=True)

    def depth_of(self, stop: Tensor) -> Tensor:
        """Return ``[B]`` the depth of node ``stop[b]``."""
        return stop if self.parents is None else self.depth.gather(1, stop.unsqueeze(1)).squeeze(1)


def with_root(values: Tensor, root: int | IntArray = 0) -> Tensor:
    """Return values ``[B, N + 1]`` of scored nodes from those of draft nodes ``[B, N]``, and of the roots ``[B]``."""
    if not values.is_cpu:
        if isinstance(root, int):
            return torch.constant_pad_nd(values, (1, 0), root)
        return torch.cat([on_device(root, values.device).unsqueeze(1), values], dim=1)
    nodes = values.numpy()  # numpy's code is still in the CPU's caches when a pass has driven torch's out
    full = np.empty((len(nodes), nodes.shape[1] + 1), dtype=nodes.dtype)
    full[:, 0], full[:, 1:] = root, nodes
    return torch.from_numpy(full)


def parents_with_root(parents: Tensor) -> Tensor | None:
    """Return the parents of scored nodes ``[B, N + 1]`` from those of draft nodes ``[B, N]``; None for chains."""
    if is_chain(parents):
        return None
    if parents.is_cpu:  # by numpy, as in ``with_root``
        return torch.from_numpy(on_host(with_root(parents, -2)) + 1)
    return with_root(parents + 1, -1)
