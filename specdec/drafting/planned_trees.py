"""Trees that are known beforehand, drafted whole by a model that does that by itself."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch

from specdec.contracts import (
    NEVER,
    Draft,
    Draws,
    IntArray,
    Randomness,
    TreePlan,
    Warping,
    WholeDrafts,
)
from specdec.drafting.assembly import CompactTrees, compact
from specdec.laws import Laws, scatter_rows
from specdec.transfers import on_device

# Given the rows that take part (indices), the nodes, how many of them each of these rows wants, and how they are drawn
# or chosen, it returns ids, peaks and laws, as ``DraftModel.grow_whole`` does.
GrowWhole = Callable[[IntArray, TreePlan, IntArray, Draws], WholeDrafts]


# Trees without absent nodes: also the ids ``[B, W]``, 0 for padding, and the law that each comes from, -1 for padding.
PresentNodes = tuple[CompactTrees, IntArray, IntArray]


def tree_draws(warping: Warping, temperature: float | None, randomness: Randomness) -> Draws | None:
    """Return how whole trees are drawn, or chosen; None if that takes more than numbers known beforehand."""
    if warping.is_greedy(temperature):
        # Greedy rows rank the ids of the law that they would have at temperature 1.
        filters = warping.filters(1.0)
        return None if filters is None else Draws(filters, None)
    filters = warping.filters(temperature)
    keys = None if filters is None else randomness.chain_keys("draft")
    return None if filters is None or keys is None else Draws(filters, keys)


def draft_trees(
    plan: TreePlan, limits: IntArray, draws: Draws, grow_whole: GrowWhole, branches: bool, device: torch.device
) -> Draft:
    """Return the trees of rows ``[B]``, drafted in one call of a model.

    Args:
        plan, limits, draws: see ``ChainingOracle.trees``; rows that want no node take no part.
        grow_whole: of these rows.
        branches: whether a node may have siblings.
        device: where the draft is put.
    """
    batch = len(limits)
    if takes_all := 0 not in limits.tolist():
        live = np.arange(batch)
    else:
        live = np.flatnonzero(limits)
        limits, draws = limits[live], draws.select(live)
    ids, peaks, table = grow_whole(live, plan, limits, draws)
    is_whole = takes_all and -1 not in ids.reshape(-1).tolist()
    trees, present, law = _all_present(plan, batch) if is_whole else _present_nodes(plan, live, ids, batch)
    made, undefined = ids if is_whole else present, None
    # It is quick to tell that all are finite. Some may be -inf; a NaN is the maximum.
    if not np.isfinite(peaks).all() and not peaks.max() < np.inf:
        depths = np.where(peaks < np.inf, NEVER, plan.depths).min(1, keepdims=True)
        undefined = on_device(scatter_rows(torch.from_numpy(depths), live, batch, NEVER), device)
    without = None
    if table is not None and branches:
        without = on_device(~trees.is_padding, device)
    tokens, num_nodes = (on_device(given, device) for given in (made, trees.num_nodes))
    parents = on_device(trees.parents, device) if branches else None
    laws = None if table is None else Laws(on_device(table, device), on_device(law, device), tokens)
    return Draft(tokens, num_nodes, parents, laws, without, undefined=undefined, is_native=True)


@lru_cache(maxsize=256)
def _all_present(plan: TreePlan, batch: int) -> PresentNodes:
    """Return trees none of whose nodes is absent, without their ids; nobody writes to them."""
    return _present_nodes(plan, np.arange(batch), np.zeros((batch, len(plan.parents)), dtype=np.int64), batch)


def _present_nodes(plan: TreePlan, live: IntArray, ids: IntArray, batch: int) -> PresentNodes:
    """Return trees of ids ``[R, N]``, -1 where absent, in the rows ``live`` of a batch."""
    whole, first = np.full((batch, ids.shape[1]), -1), np.zeros((batch, 1), dtype=np.int64)
    whole[live], first[live, 0] = ids, len(plan.depths) * np.arange(len(live))
    kept = compact(whole >= 0, plan.parents)
    tokens = np.where(kept.is_padding, 0, np.take_along_axis(whole, kept.order, 1))
    law = np.where(kept.is_padding, -1, first + plan.owners[kept.order])
    return kept, tokens, law
