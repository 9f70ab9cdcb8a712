"""Draws by torch operations: the definition of every draw, and what runs if nothing is compiled.

Source: Salmon et al. 2011 ("Parallel random numbers: as easy as 1, 2, 3") for the counter-based idea; the mixer is
splitmix64 (Steele, Lea, Flood 2014).
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import IntArray
from specdec.laws import Laws
from specdec.transfers import on_device

Integers = TypeVar("Integers", IntArray, Tensor)


class Streams(Protocol):
    """Independent streams of numbers: see ``specdec.sampling.randomness.Keyed``."""

    @property
    def keys(self) -> IntArray:
        """``[B]`` a key for each."""

    @property
    def size(self) -> int:
        """B."""

    @property
    def path(self) -> bytes:
        """What keys are made of, int64 as bytes: a seed for each, then every part, its numbers after their count."""


_WEYL = -7046029254386353131  # 0x9E3779B97F4A7C15
_MUL1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MUL2 = -7723592293110705685  # 0x94D049BB133111EB


def _mix(z: Integers) -> Integers:
    """Return the splitmix64 finaliser of int64 values (numpy or torch; arithmetic wraps, shifts are made logical)."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _MUL1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _MUL2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def extend(keys: Integers, part: Any) -> Integers:
    """Return keys that depend on ``keys`` and ``part`` (int64, broadcast); order of parts matters.

    A number is mixed on the host, wherever the keys lie.
    """
    mixed = int(_mix(np.asarray([part]) * _WEYL + 1)[0]) if isinstance(part, int) else _mix(part * _WEYL + 1)
    extended: Integers = _mix(_mix(keys + _WEYL) ^ mixed)
    return extended


def extend_by_all(keys: IntArray, parts: Sequence[IntArray]) -> IntArray:
    """Return what ``extend`` makes of keys ``[B]`` by one part after the other, each ``[B]`` or ``[1]``."""
    if parts:
        for mixed in _mix(np.stack(np.broadcast_arrays(*parts)) * _WEYL + 1):
            keys = _mix(_mix(keys + _WEYL) ^ mixed)
    return keys


def bits_of(keys: Integers) -> Integers:
    """Return the 53 bits of keys that make a uniform number."""
    return (keys >> 11) & 0x1FFFFFFFFFFFFF


def first_above(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return the inverse-CDF draw of each row of non-negative float64 ``weights`` ``[M, V]`` at ``uniform`` ``[M]``.

    Guarantee: an id of weight 0 is never returned, whatever the rounding of the running sum.
    """
    cdf = weights.cumsum(-1)
    if cdf.device.type != "cpu":
        # A parallel scan may rise, or fall, by rounding at a weight of 0; a sequential one cannot.
        cdf = torch.where(weights > 0, cdf, 0.0).cummax(-1).values
    total = cdf[:, -1:].contiguous()
    # Rounding may put the threshold at the total itself: then the id that reaches the total is the draw.
    first = torch.searchsorted(cdf, uniform.unsqueeze(-1) * total, right=True)
    # A law may hold NaN, which the engine reports: then any id will do.
    return torch.minimum(first, torch.searchsorted(cdf, total)).squeeze(-1).clamp(max=weights.shape[-1] - 1)


def draw_distinct(weights: Tensor, uniforms: Callable[[int], Tensor], k: int) -> Tensor:
    """Return ``[M, k]`` draws without replacement, in drawing order; -1 once the support is exhausted."""
    weights = weights.clone()
    draws = []
    for i in range(k):
        alive = weights.sum(-1) > 0
        ids = first_above(weights, uniforms(i))
        draws.append(torch.where(alive, ids, -1))
        weights.scatter_(1, ids.unsqueeze(1), 0.0)
    return torch.stack(draws, dim=-1)


def _finish(laws: Laws, table_draws: Tensor, k: int) -> Tensor:
    """Return the draws with point masses filled in: shape of the laws, plus ``[k]`` for k > 1."""
    draws = table_draws.view(*laws.shape, k)
    point = torch.full_like(draws, -1)
    point[..., 0] = laws.point
    draws = torch.where((laws.index < 0).unsqueeze(-1), point, draws)
    return draws if k > 1 else draws.squeeze(-1)


def only_points(laws: Laws, k: int) -> Tensor:
    """Return the draws from point masses, shaped as by ``Kernels.draw``: no number is needed."""
    if k == 1:
        return laws.point
    return torch.nn.functional.pad(laws.point.unsqueeze(-1), (0, k - 1), value=-1)


def weights_of(laws: Laws) -> Tensor:
    """Return the probabilities of every law as float64 rows ``[M, V]`` (a table row, any one, for point masses)."""
    return laws.table[laws.index.clamp(min=0).reshape(-1)].double()


def _waiting(cells: Tensor) -> Tensor:
    """Return exponential waiting times of hashed cells; 53 bits, centred: every one is finite and not below +0."""
    return 0 - ((bits_of(cells).double() + 0.5) * 2.0**-53).log()


def _race(weights: Tensor, keys: Tensor) -> Tensor:
    """Return ``[M, V]`` weight over waiting time, the times keyed by ``keys`` ``[M, 1]`` and id.

    Cost: O(V) a row, and a hash for every id; on the host, if few ids have positive weight, for these alone.
    """
    if weights.device.type == "cpu" and int(weights.count_nonzero()) * 4 < weights.numel():
        rows, ids = weights.nonzero(as_tuple=True)
        times = _waiting(extend(keys[rows, 0], ids))
        return torch.zeros_like(weights).index_put_((rows, ids), weights[rows, ids] / times)
    return weights / _waiting(extend(keys, torch.arange(weights.shape[1], device=weights.device)))


def draw(laws: Laws, k: int, streams: Streams, purpose: int, node: Any) -> Tensor:
    """Return draws along running sums; see ``Kernels.draw``."""
    device, lead = laws.index.device, (-1, *([1] * (len(laws.shape) - 1)))
    if not isinstance(node, int):
        node = on_device(np.asarray(node, dtype=np.int64), device)
    keys = extend(extend(on_device(streams.keys, device), purpose).view(lead), node)
    keys = keys.expand(laws.shape).reshape(-1)

    def uniforms(rank: int) -> Tensor:
        return bits_of(extend(keys, rank)).double() * 2.0**-53

    if k == 1:
        return _finish(laws, first_above(weights_of(laws), uniforms(0)), 1)
    return _finish(laws, draw_distinct(weights_of(laws), uniforms, k), k)


def race(laws: Laws, k: int, keys: IntArray, positions: IntArray, depth: Any) -> Tensor:
    """Return winners of races; see ``Kernels.race``."""
    device, lead = laws.index.device, (-1, *([1] * (len(laws.shape) - 1)))
    base, own = (on_device(numbers, device).view(lead) for numbers in (positions, keys))
    if not isinstance(depth, int):
        depth = on_device(depth if isinstance(depth, Tensor) else np.asarray(depth), device)
    found = _race(weights_of(laws), extend(own, base + depth).expand(laws.shape).reshape(-1, 1))
    if k == 1:
        return _finish(laws, found.argmax(-1), 1)
    best, ids = found.sort(dim=-1, descending=True, stable=True)
    size = min(k, ids.shape[-1])
    drawn = torch.where(best[..., :size] > 0, ids[..., :size], -1)
    return _finish(laws, torch.nn.functional.pad(drawn, (0, k - size), value=-1), k)
