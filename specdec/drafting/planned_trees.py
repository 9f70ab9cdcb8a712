"""Trees that are known beforehand, drafted whole by a model that does that by itself."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import NEVER, Draft, IntArray, Randomness, TreeDraws, TreePlan, Warping
from specdec.drafting.assembly import compacted
from specdec.laws import Laws, spread
from specdec.transfers import on_device, on_host

# Given the rows that take part (indices), the nodes, how many of them each of these rows wants, and how they are drawn
# or chosen, it returns ids, peaks and laws, as ``DraftModel.grow_whole``.
GrowWhole = Callable[[IntArray, TreePlan, IntArray, TreeDraws], tuple[Tensor, Tensor, Tensor | None]]


def tree_draws(warping: Warping, temperature: float | None, randomness: Randomness) -> TreeDraws | None:
    """Return how whole trees are drawn, or chosen; None if that takes more than numbers known beforehand."""
    if warping.is_argmax(temperature):
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
    live, batch, inner = np.flatnonzero(limits), len(limits), len(plan.depths)
    draws = draws if live.size == batch else draws.select(live)
    drawn, peaks, table = grow_whole(live, plan, limits[live], draws)
    ids, rows = on_host(spread(drawn, live, batch, -1)), np.arange(batch)[:, None]
    kept = compacted(ids >= 0, plan.parents)
    tokens = on_device(np.where(kept.is_padding, 0, ids[rows, kept.order]), device)
    laws = None
    if table is not None:
        first = np.zeros(batch, dtype=np.int64)
        first[live] = inner * np.arange(live.size)
        index = np.where(kept.is_padding, -1, first[:, None] + plan.owners[kept.order])
        laws = Laws(on_device(table.view(-1, table.shape[-1]), device), on_device(index, device), tokens)
    undefined = np.where(on_host(peaks) < np.inf, NEVER, plan.depths).min(1, keepdims=True)
    return Draft(
        tokens,
        on_device(kept.num_nodes, device),
        on_device(kept.parents, device),
        laws,
        None if laws is None or not branches else on_device(~kept.is_padding, device),
        undefined=on_device(spread(torch.from_numpy(undefined), live, batch, NEVER), device),
    )
