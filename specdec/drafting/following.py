"""Chains that a model drafts by itself, in one call."""

from typing import Any

import numpy as np
import torch

from specdec.contracts import Adjustments, ChainDraws, ChainingOracle, ChainWatch, Float32Array, IntArray
from specdec.laws import Laws


def follow_ids(
    model: ChainingOracle,
    ids: IntArray,
    ends: IntArray,
    cache: Any,
    rows: IntArray,
    watch: ChainWatch,
    draws: ChainDraws | None,
    adjustments: Adjustments | None,
    device: torch.device,
) -> tuple[IntArray, Float32Array, Laws | None]:
    """Score the ids whose keys a cache lacks, and follow the likeliest after them, or drawn ones, in one call.

    Args:
        model: drafts.
        ids, ends: what stands in the rows, see ``ChainingOracle``.
        cache: that the model scores on; it keeps keys as ``ChainingOracle`` says.
        rows: ``[B]`` of it.
        watch: its limits say how many ids each row wants, more than 0 in one of them.
        draws: how the ids of those rows are drawn; None: the likeliest are followed.
        adjustments: what changes the logits of those rows, if the model takes that.
        device: where the laws are put.

    Returns:
        Ids and peaks as of ``ChainingOracle``, and the laws that were drawn from, a point mass on id 0 beyond a row's
        limit; None if nothing was drawn.

    Cost: one call, of as many passes as the longest row wants ids; laws take O(B N V) memory.
    """
    call = ids, ends, cache, rows, watch.limits
    adjusted = () if adjustments is None else (adjustments,)
    if draws is None:
        drafted, peaks = model.greedy_chains(*call, watch, *adjusted)
        return drafted, peaks, None
    drafted, peaks, table = model.sampled_chains(*call, draws, watch, *adjusted)
    limits, size = watch.limits, table.shape[1]
    laws = Laws.from_probs(torch.from_numpy(table))
    if min(limits.tolist()) < size:
        laws = laws.with_points(torch.from_numpy(np.arange(size) >= limits[:, None]))
    return drafted, peaks, laws.to(device)
