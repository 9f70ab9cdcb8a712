"""Trees that are known beforehand, drafted whole by a model that does that by itself."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import NEVER, Draft, Float32Array, IntArray, Randomness, TreeDraws, TreePlan, Warping
from specdec.laws import Laws, spread
from specdec.native import Standing, compiled_compacting
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
    batch, is_here = len(limits), device == HOST
    live = np.arange(batch) if limits.all() else np.flatnonzero(limits)
    ids, peaks, table = grow_whole(live, plan, limits[live], draws if live.size == batch else draws.select(live))
    is_whole = live.size == batch and is_here and ids.min() >= 0
    trees = _whole(plan, batch)._replace(tokens=ids) if is_whole else _standing(plan, live, ids, batch)
    undefined = None
    if not peaks.max() < np.inf:  # a NaN is the maximum
        depths = np.where(peaks < np.inf, NEVER, plan.depths).min(1, keepdims=True)
        undefined = on_device(spread(torch.from_numpy(depths), live, batch, NEVER), device)
    if is_here and table is None:
        return Draft.of_arrays(trees.tokens, trees.num_nodes, trees.parents, undefined=undefined)
    tokens, laws, without = on_device(trees.tokens, device), None, None
    if table is not None:
        law, without = _drawn_whole(plan, batch, branches) if is_whole else _drawn(trees, branches, device)
        laws = Laws(on_device(table, device), law, tokens)
    if is_here:
        return Draft.of_arrays(trees.tokens, trees.num_nodes, trees.parents, laws, without, undefined=undefined)
    num_nodes, parents = on_device(trees.num_nodes, device), on_device(trees.parents, device)
    return Draft(tokens, num_nodes, parents, laws, without, undefined=undefined)


@lru_cache(maxsize=256)
def _whole(plan: TreePlan, batch: int) -> Standing:
    """Return trees none of whose nodes is absent, but for their ids; nobody writes to it."""
    return _standing(plan, np.arange(batch), np.zeros((batch, len(plan.parents)), dtype=np.int64), batch)


@lru_cache(maxsize=256)
def _drawn_whole(plan: TreePlan, batch: int, branches: bool) -> tuple[Tensor, Tensor | None]:
    """Return ``_drawn`` of such trees, on the host."""
    with torch.inference_mode(False):
        return _drawn(_whole(plan, batch), branches, HOST)


def _drawn(trees: Standing, branches: bool, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return ``[B, W]`` the law of each node, -1 for padding, and ``Draft.without_replacement``."""
    return on_device(trees.law, device), on_device(trees.is_real, device) if branches else None


def _standing(plan: TreePlan, live: IntArray, ids: IntArray, batch: int) -> Standing:
    """Return trees of ids ``[R, N]``, -1 where absent, in the rows ``live`` of a batch."""
    compact = compiled_compacting()
    assert compact is not None, "without compiled code a warping has no filters, by which whole trees are drawn"
    return compact(ids, plan.parents, plan.owners, len(plan.depths), live, batch)
