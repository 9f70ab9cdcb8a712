"""Rotary positions: tables of angles, and the rotation itself."""

import math

import torch
from torch import Tensor

from oracles.config import RopeScaling, TransformerConfig


def inverse_frequencies(config: TransformerConfig) -> Tensor:
    """Return ``[rotary_size / 2]`` float64 angles per position.

    Source: Su et al. 2021 (arXiv 2104.09864); scaling as in ``RopeScaling``.
    """
    exponents = torch.arange(0, config.rotary_size, 2, dtype=torch.float64) / config.rotary_size
    frequencies = config.rope_theta**-exponents
    if config.rope_scaling is None:
        return frequencies
    if config.rope_scaling.kind == "linear":
        return frequencies / config.rope_scaling.factor
    return _llama3_frequencies(frequencies, config.rope_scaling)


def _llama3_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    turns = scaling.original_context * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return frequencies * kept + frequencies / scaling.factor * (1.0 - kept)


class RotaryTable:
    """Cosines and signed sines of positions, computed in float64 and kept for the positions met so far.

    The sine of the first member of a pair is negated, so that a rotation is ``x * cos + swap(x) * sin``.
    """

    def __init__(self, config: TransformerConfig) -> None:
        self._config = config
        self._table: tuple[Tensor, Tensor] | None = None

    def rows(self, positions: Tensor, end: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines ``[..., 1, rotary_size]`` of ``positions`` ``[...]``, all of them below ``end``."""
        table = self._table
        if table is None or table[0].shape[0] < end or (table[0].dtype, table[0].device) != (dtype, positions.device):
            size = max(256, 1 << (end - 1).bit_length())
            cos, sin = (part.to(positions.device, dtype) for part in self._computed(size))
            table = self._table = (cos, sin)
        return table[0][positions].unsqueeze(-2), table[1][positions].unsqueeze(-2)

    def _computed(self, size: int) -> tuple[Tensor, Tensor]:
        angles = torch.arange(size, dtype=torch.float64).unsqueeze(1) * inverse_frequencies(self._config)
        cos, sin = angles.cos(), angles.sin()
        if self._config.rope_interleaved:
            return cos.repeat_interleave(2, -1), torch.stack([-sin, sin], -1).flatten(-2)
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the leading ``cos.shape[-1]`` dimensions of heads ``[..., H, D]``.

    Args:
        x: queries or keys.
        cos, sin: ``[..., 1, rotary_size]`` rows of ``rotary_table``, in the dtype of ``x``.
        interleaved: pairs are (2i, 2i + 1), not (i, i + rotary_size / 2).
    """
    size = cos.shape[-1]
    if size == 0:
        return x
    turning = x[..., :size]
    pairs = turning.view(*turning.shape[:-1], *((-1, 2) if interleaved else (2, -1)))
    swapped = pairs.flip(-1 if interleaved else -2).flatten(-2)
    turned = torch.addcmul(turning * cos, swapped, sin)
    return turned if size == x.shape[-1] else torch.cat([turned, x[..., size:]], dim=-1)
