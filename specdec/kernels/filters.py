"""Temperature, top-k, top-p and min-p by torch operations: the reference, and what runs if nothing is compiled."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import FloatArray, IntArray
from specdec.transfers import on_host

# Temperatures below which quotients of the largest biases may overflow.
_COLD = 1e-6


# Laws that are summed at once on CUDA, where the order of a sum depends on their number; V is padded to whole pieces.
_LAWS, _PIECE = 64, 16


def _sum_over(compute: Callable[[Tensor], Tensor], laws: Tensor) -> Tensor:
    """Return sums, or sums up to each id, of laws ``[..., V]``, by ``compute``: on CUDA of ``_LAWS`` laws at a time."""
    return _by_tiles(compute, laws) if laws.device.type == "cuda" else compute(laws)


def _by_tiles(compute: Callable[[Tensor], Tensor], laws: Tensor) -> Tensor:
    """Return what ``compute`` makes of laws ``[..., V]``, always from tiles of one shape."""
    flat, size = laws.flatten(0, -2), laws.shape[-1]
    padded = torch.nn.functional.pad(flat, (0, -size % _PIECE, 0, -len(flat) % _LAWS))
    made = torch.cat([compute(tile) for tile in torch.split(padded, _LAWS)])[: len(flat), :size]
    return made.reshape(*laws.shape[:-1], -1)


def _best(values: Tensor, count: int) -> Tensor:
    """Return the ``count`` largest of each row ``[K, V]``, in descending order. NaN counts as largest.

    Cost: O(V + count log count) a row on the host, where numpy selects and sorts ten times as fast as torch.
    """
    if values.device.type != "cpu":
        return values.topk(count, dim=-1).values
    array, size = on_host(values), values.shape[-1]
    if count < size:
        array = np.partition(array, size - count, axis=-1)[:, size - count :]
    return torch.from_numpy(np.sort(array, axis=-1)[:, ::-1].copy())


def filter_top_k(logits: Tensor, top_k: IntArray, asked: Tensor) -> Tensor:
    """Return logits ``[R, M, V]`` with all but the ``top_k[r]`` best at -inf; ties with the k-th stay, 0 keeps all.

    Args:
        logits: ``[R, M, V]``.
        top_k: ``[R]`` on the host.
        asked: the same beside the logits, in any type; numbers above V are V.

    Cost: O(R M V) selection for the largest k asked for.
    """
    size = logits.shape[-1]
    cuts = (top_k > 0) & (top_k < size)
    if not cuts.any():
        return logits
    best = _best(logits.flatten(0, 1), int(top_k[cuts].max())).view(*logits.shape[:2], -1)
    count = asked.clamp(max=size).long().view(-1, 1, 1)
    cut = (count > 0) & (count < size)
    floor = best.gather(-1, (torch.where(cut, count, 1) - 1).expand(-1, logits.shape[1], 1))
    return torch.where(logits < floor.masked_fill(~cut, -torch.inf), -torch.inf, logits)


def keep_top_p(probs: Tensor, top_p: Tensor) -> Tensor:
    """Return ``[K, V]``, 1 for the smallest set of best ids that reaches ``top_p[k]``, lowest id first among equals.

    Args:
        probs: ``[K, V]``.
        top_p: ``[K]`` float64; 1 keeps all.

    Returns:
        Ones and zeros in the type of ``probs``.

    Cost: a sort, O(V log V) a law.
    """
    bound, best = top_p.unsqueeze(-1), _best(probs, probs.shape[-1])
    count = (_sum_over(partial(torch.cumsum, dim=-1), best) - best < bound).sum(-1, keepdim=True).clamp(min=1)
    smallest = best.gather(-1, count - 1)
    above, equal = probs > smallest, probs == smallest
    room = count - above.sum(-1, keepdim=True)
    return (above | (equal & (equal.cumsum(-1) <= room)) | (bound >= 1)).to(probs.dtype)


def torch_probs(logits: Tensor, filters: FloatArray, there: Sequence[Tensor]) -> Tensor:
    """Return what ``Kernels.laws`` does, on any device.

    Args:
        logits: ``[R, M, V]``.
        filters: ``[F, R]`` a row for each of FILTERS, in their order.
        there: as many of ``[R]``, the same numbers beside the logits.
    """
    temperature, top_k, top_p, min_p = filters
    limits = torch.finfo(logits.dtype)
    heats, counts, bounds, ratios = there
    # Below this bound quotients may overflow, and inf - inf is NaN; the law at it is that of the best ids already.
    # Above the largest number a temperature is infinite, and so is -inf / inf NaN.
    heat = heats.clamp(limits.tiny / limits.eps, limits.max).to(logits.dtype).view(-1, 1, 1)
    if (temperature < _COLD).any():
        # Biases and penalties make logits of 1e30: seen from the best id quotients end at -inf, which means something.
        logits = logits - logits.amax(-1, keepdim=True).masked_fill(heat >= _COLD, 0)
    probs = filter_top_k(logits / heat, top_k.clip(max=logits.shape[-1]).astype(np.int64), counts).softmax(-1)
    by_mass, by_ratio = top_p < 1, min_p > 0
    if not (by_mass | by_ratio).any():
        return probs
    kept = probs
    if by_mass.any():
        of_nodes = bounds.repeat_interleave(logits.shape[1])
        kept = keep_top_p(probs.flatten(0, 1), of_nodes).view_as(probs).mul_(probs)
    if by_ratio.any():
        floor = ratios.view(-1, 1, 1).to(probs.dtype) * probs.amax(-1, keepdim=True)
        # Comparing in place gives ones and zeros of the laws' own type, at a tenth of what a mask costs.
        kept = probs.clone().ge_(floor).mul_(kept)
    kept = kept.div_(_sum_over(partial(torch.sum, dim=-1, keepdim=True), kept))
    if (by_mass | by_ratio).all():
        return kept
    return torch.where(((bounds < 1) | (ratios > 0)).view(-1, 1, 1), kept, probs)
