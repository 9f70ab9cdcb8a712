"""Trees that are known beforehand, drafted whole by a model that does that by itself."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import NEVER, Draft, Float32Array, IntArray, Randomness, TreeDraws, TreePlan, Warping
from specdec.laws import Laws, spread
from specdec.native import compiled_compacting
from specdec.transfers import HOST, on_device

# Given the rows that take part (indices), the nodes, how many of them each of these rows wants, and how they are drawn
# or chosen, it returns ids, peaks and laws, as ``DraftModel.grow_whole``.
GrowWhole = Callable[[IntArray, TreePlan, IntArray, TreeDraws], tuple[IntArray, Float32Array, Float32Array | None]]


def tree_draws(warping: Warping, temperature: float | None, randomness: Randomness) -> TreeDraws | None:
    """Return how whole trees are drawn, or chosen; None if that takes more than numbers known beforehand."""
    if warping.is_greedy(temperature):
        # Greedy rows rank the ids of the law that they would have at temperature 1.
        filters = warping.filters(1.0)
        return None if filters is None else TreeDraws(filters, None)
    filters = warping.filters(temperature)
    keys = None if filters is None else randomness.chain_keys("draft")
    return None if filters is None or keys is None else TreeDraws(filters, keys)


def drafted_whole(
    plan: TreePlan, limits: IntArray, draws: TreeDraws, grow_whole: GrowWhole, branches: bool, device: torch.device
) -> Draft:
    """Return the trees of rows ``[B]``, drafted in one call of a model.

    Args:
        plan, limits, draws: see ``ChainingOracle.trees``; rows that want no node take no part.
        grow_whole: of these rows.
        branches: whether a node may have siblings.
        device: where the draft is put.
    """
    batch = len(limits)
    live = np.arange(batch) if limits.all() else np.flatnonzero(limits)
    ids, peaks, table = grow_whole(live, plan, limits[live], draws if live.size == batch else draws.select(live))
    if live.size == batch and device.type == "cpu" and ids.min() >= 0:
        kept, tokens = _whole(plan, batch), on_device(ids, device)
    else:
        tokens, kept = _part(plan, live, ids, batch, device)
    laws = None if table is None else on_device(table, device)
    undefined = None
    if not peaks.max() < np.inf:  # a NaN is the maximum
        depths = np.where(peaks < np.inf, NEVER, plan.depths).min(1, keepdims=True)
        undefined = on_device(spread(torch.from_numpy(depths), live, batch, NEVER), device)
    return Draft(
        tokens,
        kept.num_nodes,
        kept.parents,
        None if laws is None else Laws(laws, kept.law, tokens),
        None if laws is None or not branches else kept.is_real,
        undefined=undefined,
    )


class _Nodes(NamedTuple):
    """What is known of trees without their ids; nobody writes to it.

    Attributes:
        num_nodes: ``[B]``.
        parents: ``[B, N]``.
        law: ``[B, N]`` the law that each node is drawn from, -1 for padding.
        is_real: ``[B, N]`` bool.
    """

    num_nodes: Tensor
    parents: Tensor
    law: Tensor
    is_real: Tensor


@lru_cache(maxsize=256)
def _whole(plan: TreePlan, batch: int) -> _Nodes:
    """Return the nodes of trees none of whose nodes is absent, on the host."""
    with torch.inference_mode(False):
        ids = np.zeros((batch, len(plan.parents)), dtype=np.int64)
        return _part(plan, np.arange(batch), ids, batch, HOST)[1]


def _part(plan: TreePlan, live: IntArray, ids: IntArray, batch: int, device: torch.device) -> tuple[Tensor, _Nodes]:
    """Return the ids ``[B, W]`` and nodes of trees, those of the rows ``live`` of ids ``[R, N]``, -1 where absent."""
    compact = compiled_compacting()
    assert compact is not None, "without compiled code a warping has no filters, by which whole trees are drawn"
    num_nodes, tokens, *nodes = compact(ids, plan.parents, plan.owners, len(plan.depths), live, batch)
    return on_device(tokens, device), _Nodes(*(on_device(array, device) for array in (num_nodes, *nodes)))
