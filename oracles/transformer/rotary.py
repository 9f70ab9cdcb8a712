"""Rotary positions: tables of angles, and the rotation itself."""

import math
from decimal import Decimal, localcontext

import torch
from torch import Tensor

from oracles.transformer.config import RopeScaling, TransformerConfig
from specdec.transfers import HOST


def inverse_frequencies(config: TransformerConfig) -> Tensor:
    """Return ``[rotary_size / 2]`` float64 angles per position, the same on every machine.

    Powers are computed in decimal arithmetic and rounded once: those of the C library differ between machines.

    Source: Su et al. 2021 (arXiv 2104.09864); scaling as in ``RopeScaling``.
    """
    with localcontext(prec=40):
        base, size = Decimal(config.rope_theta), Decimal(config.rotary_size)
        powers = [float(base ** (-i / size)) for i in range(0, config.rotary_size, 2)]
    frequencies = torch.tensor(powers, dtype=torch.float64, device="cpu")
    if config.rope_scaling is None:
        return frequencies
    if config.rope_scaling.kind == "linear":
        return frequencies / config.rope_scaling.factor
    if config.rope_scaling.kind == "factors":
        return frequencies / torch.tensor(config.rope_scaling.factors, dtype=torch.float64, device="cpu")
    if config.rope_scaling.kind == "yarn":
        return _yarn_frequencies(frequencies, config.rope_scaling, config.rope_theta)
    return _llama3_frequencies(frequencies, config.rope_scaling)


def _llama3_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    turns = scaling.original_context * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return frequencies * kept + frequencies / scaling.factor * (1.0 - kept)


def _yarn_frequencies(frequencies: Tensor, scaling: RopeScaling, theta: float) -> Tensor:
    pairs = len(frequencies)

    def pair_that_turns(times: float) -> float:
        """Return the (fractional) pair that turns this many times in the context of pre-training."""
        with localcontext(prec=40):
            turn = Decimal(scaling.original_context) / (Decimal(times) * Decimal(2 * math.pi))
            return float(pairs * turn.ln() / Decimal(theta).ln())

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    scaled = (torch.arange(pairs, dtype=torch.float64, device="cpu") - first) / (last - first or 1e-3)
    scaled = scaled.clamp(0.0, 1.0)
    return frequencies / scaling.factor * scaled + frequencies * (1.0 - scaled)


def rotary_magnitude(config: TransformerConfig) -> float:
    """Return the factor on cosines and sines: 1 except for "yarn"."""
    scaling = config.rope_scaling
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    return yarn_magnitude(scaling.factor) if scaling.attention_factor is None else scaling.attention_factor


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """Return 1 + scale ln(factor) / 10, the same on every machine."""
    with localcontext(prec=40):
        return float(1 + Decimal(scale) * Decimal(factor).ln() / 10)


Rope = tuple[Tensor, Tensor] | Tensor


class RotaryTable:
    """Rotations of positions, computed in float64 and kept for the positions met so far.

    Args:
        config: the model's shape.
        as_complex: keep rotations as complex numbers, for heads whose pairs are adjacent. Else they are cosines and
            signed sines: the sine of the first member of a pair is negated, so that a rotation is
            ``x * cos + swap(x) * sin``.
    """

    def __init__(self, config: TransformerConfig, as_complex: bool = False) -> None:
        self._config, self._as_complex = config, as_complex
        # One attribute for both: another thread may replace them meanwhile, and a call keeps those that it found.
        self._kept: tuple[tuple[torch.dtype, torch.device], list[Tensor]] | None = None

    def rows(self, positions: Tensor, end: int, dtype: torch.dtype) -> Rope:
        """Return what ``rotate`` takes for ``positions`` ``[...]``, all of them below ``end``."""
        key, kept = (dtype, positions.device), self._kept
        if kept is None or kept[0] != key or kept[1][0].shape[0] < end:
            size = max(256, 1 << (end - 1).bit_length())
            tables = [part.to(positions.device, dtype) for part in self._compute(size)]
            kept = self._kept = key, [torch.complex(*tables)] if self._as_complex else tables
        # [..., rotary_size], or half of it, for every head alike
        rows = [table[positions].unsqueeze(-2) for table in kept[1]]
        return rows[0] if self._as_complex else (rows[0], rows[1])

    def hold(self, end: int, dtype: torch.dtype, device: torch.device) -> None:
        """Keep the rotations of all positions below ``end`` in the memory that graphs read.

        If the table grew later, graphs would go on reading at its old address.
        """
        self.rows(torch.zeros(1, dtype=torch.int64, device=device), end, dtype)

    def _compute(self, size: int) -> tuple[Tensor, Tensor]:
        angles = torch.arange(size, dtype=torch.float64, device="cpu").unsqueeze(1) * inverse_frequencies(self._config)
        magnitude = rotary_magnitude(self._config)
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        if self._as_complex:
            return cos, sin
        if self._config.rope_interleaved:
            return cos.repeat_interleave(2, -1), torch.stack([-sin, sin], -1).flatten(-2)
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def pair_order(config: TransformerConfig) -> Tensor:
    """Return the ``[D]`` order of a head's dimensions in which the members of a rotary pair are adjacent."""
    order = torch.arange(config.head_size, device=HOST)
    if not config.rope_interleaved:
        order[: config.rotary_size] = order[: config.rotary_size].view(2, -1).t().flatten()
    return order


def rotate(x: Tensor, rope: Rope, interleaved: bool) -> Tensor:
    """Rotate the leading dimensions of heads ``[..., H, D]``, in place if rotations are complex.

    Args:
        x: queries or keys.
        rope: ``[..., 1, rotary_size]`` cosines and sines, or ``[..., 1, rotary_size / 2]`` complex.
        interleaved: pairs are (2i, 2i + 1), not (i, i + rotary_size / 2); complex rotations take them so anyway.
    """
    if isinstance(rope, Tensor):
        if rope.shape[-1]:
            pairs = x[..., : 2 * rope.shape[-1]].view(*x.shape[:-1], -1, 2)
            torch.view_as_complex(pairs).mul_(rope)
        return x
    cos, sin = (table.to(x.dtype) for table in rope)
    size = cos.shape[-1]
    if size == 0:
        return x
    turning = x[..., :size]
    pairs = turning.view(*turning.shape[:-1], *((-1, 2) if interleaved else (2, -1)))
    swapped = pairs.flip(-1 if interleaved else -2).flatten(-2)
    turned = torch.addcmul(turning * cos, swapped, sin)
    return turned if size == x.shape[-1] else torch.cat([turned, x[..., size:]], dim=-1)
