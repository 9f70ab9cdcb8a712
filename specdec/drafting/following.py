"""Chains that a model drafts by itself, in one call."""

from typing import Any

import numpy as np
import torch

from specdec.contracts import Adjustments, ChainDraws, ChainingOracle, ChainWatch, Float32Array, IntArray
from specdec.laws import Laws
from specdec.transfers import listed, on_device


def followed(
    model: ChainingOracle,
    tokens: IntArray,
    counts: IntArray,
    cache: Any,
    rows: IntArray,
    watch: ChainWatch,
    draws: ChainDraws | None,
    adjustments: Adjustments | None,
    device: torch.device,
) -> tuple[IntArray, Float32Array, Laws | None]:
    """Score tokens, and follow the likeliest ids after them, or drawn ones, in one call.

    Args:
        model: drafts.
        tokens: ``[B, M]`` the ids that it has not read yet; the last of a row is pending.
        counts: ``[B]`` how many of them are real; 0 in a row that drafts nothing.
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
    call = tokens, counts, cache, rows, watch.limits
    adjusted = () if adjustments is None else (adjustments,)
    if draws is None:
        ids, peaks = model.greedy_chains(*call, watch, *adjusted)
        return ids, peaks, None
    ids, peaks, table = model.sampled_chains(*call, draws, watch, *adjusted)
    return ids, peaks, _laws_within(on_device(table, device), watch.limits)


def _laws_within(probs: torch.Tensor, limits: IntArray) -> Laws:
    """Return the laws of probabilities ``[B, N, V]``, a point mass on id 0 beyond each row's limit."""
    laws = Laws.from_probs(probs)
    if min(listed(limits)) == probs.shape[1]:
        return laws
    return laws.pointed(on_device(np.arange(probs.shape[1]) >= limits[:, None], probs.device))
