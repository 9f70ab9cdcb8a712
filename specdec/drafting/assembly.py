"""Take nodes that are absent or not kept out of trees."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import BoolArray, IntArray
from specdec.transfers import on_host, together_on_device


class CompactTrees(NamedTuple):
    """The real nodes of trees side by side; W is how many the row with the most has.

    Attributes:
        order: ``[B, W]`` the place of each among all nodes, any for padding.
        parents: ``[B, W]``; padding goes on as a chain, so that chains among trees are chains.
        num_nodes: ``[B]``.
        is_padding: ``[B, W]``.
    """

    order: IntArray
    parents: IntArray
    num_nodes: IntArray
    is_padding: BoolArray


def compact(is_real: BoolArray, above: IntArray) -> CompactTrees:
    """Return trees without the nodes that are not real.

    Args:
        is_real: ``[B, S]``; no real node is below one that is not real.
        above: ``[B, S]``, or ``[S]`` for all rows, each node's parent.
    """
    num_nodes = is_real.sum(1)
    batch, width = len(is_real), int(num_nodes.max(initial=0))
    columns, rows = np.arange(width), np.arange(batch)[:, None]
    is_padding = columns >= num_nodes[:, None]
    if is_real.all():
        return CompactTrees(
            np.tile(columns, (batch, 1)), np.array(np.broadcast_to(above, is_real.shape)), num_nodes, is_padding
        )
    order = np.argsort(~is_real, axis=1, kind="stable")[:, :width]
    parents = above[order] if above.ndim == 1 else above[rows, order]
    # A node that stays moves to the left by the number of nodes before it that do not.
    parents = np.where(parents < 0, -1, (is_real.cumsum(1) - 1)[rows, parents])
    return CompactTrees(order, np.where(is_padding, columns - 1, parents), num_nodes, is_padding)


def compact_nodes(is_real: Tensor, above: Tensor, max_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``order``, ``parents`` and ``num_nodes`` of trees ``[B, S]`` without the nodes that are not real.

    ``max_nodes`` is the most that a row can have: see ``compact_on_device``, which does this on a device.
    """
    if not is_real.is_cpu:
        return compact_on_device(is_real, above, max_nodes)
    kept = compact(on_host(is_real), on_host(above))
    order, parents, num_nodes = together_on_device(kept.order, kept.parents, kept.num_nodes, device=is_real.device)
    return order, parents, num_nodes


def compact_on_device(is_real: Tensor, above: Tensor, max_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what ``compact`` does, of tensors ``[B, S]`` on a device, without reading them on the host.

    How many nodes the widest row has is not known, so W is S, or ``max_nodes`` if no row can have more.

    Returns:
        ``order``, ``parents`` and ``num_nodes``.
    """
    num_nodes, width = is_real.sum(1), min(is_real.shape[1], max_nodes)
    order = (~is_real).long().argsort(dim=1, stable=True)[:, :width]
    parents = above.gather(1, order)
    moved = (is_real.cumsum(1) - 1).gather(1, parents.clamp(min=0))
    columns = torch.arange(width, device=is_real.device)
    parents = torch.where(parents < 0, parents, moved)
    return order, torch.where(columns < num_nodes.unsqueeze(1), parents, columns - 1), num_nodes
