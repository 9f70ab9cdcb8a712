"""Weights of a linear layer in int8, with a float32 scale for each output."""

from dataclasses import dataclass

import torch
from torch import Tensor

# The largest magnitude that an int8 holds on both sides of zero.
LARGEST = 127
# float32's smallest number with full precision: no scale lies below it, so nothing is divided by zero.
_LEAST_SCALE = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Quantised:
    """A weight ``[out, in]`` as whole numbers times a scale for each output.

    Args:
        values: ``[out, in]`` int8, from -127 to 127.
        scales: ``[out]`` float32, positive: the distance between neighbouring weights of a row.

    Source: the vector-wise absmax quantisation of weights of Dettmers et al. 2022 (LLM.int8(), arXiv 2208.07339,
        sections 2.1 and 3.1).
    Deviations: weights only. Activations stay float32, so there are no outlier columns to take out, and the product is
        one with the dequantised weights.
    """

    values: Tensor
    scales: Tensor

    @classmethod
    def of(cls, weight: Tensor, name: str) -> "Quantised":
        """Return a weight rounded to the nearest whole number of scales, halves to even.

        A row's scale is max |w| / 127; a row of zeros, or of numbers that small, has the smallest normal float32.

        Args:
            weight: ``[out, in]``, of any float dtype; widened, or narrowed, to float32 first.
            name: of the layer, for errors.

        Raises:
            ValueError: a weight is NaN, infinite, or the largest float32, which 127 scales exceed.

        Guarantee: |w - dequantised| <= scale / 2, up to 2^-16 of a scale, which float32 rounds.
        """
        wide = weight.detach().float()
        scales = (wide.abs().amax(dim=1) / LARGEST).clamp(min=_LEAST_SCALE)
        if not bool((scales * LARGEST).isfinite().all()):
            raise ValueError(f"{name}: a weight is NaN, infinite or too large for float32; mend the checkpoint")
        return cls((wide / scales.unsqueeze(1)).round().to(torch.int8), scales)

    def dequantised(self) -> Tensor:
        """Return ``[out, in]`` float32: each value times its row's scale, rounded once."""
        return self.values.float() * self.scales.unsqueeze(1)

    def first(self, rows: int) -> "Quantised":
        """Return the first rows only."""
        return Quantised(self.values[:rows], self.scales[:rows])

    @property
    def bytes(self) -> int:
        """Memory of values and scales."""
        return self.values.nbytes + self.scales.nbytes
