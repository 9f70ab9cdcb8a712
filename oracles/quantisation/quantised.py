"""The weight of a linear layer as whole numbers times scales."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from oracles.quantisation.formats import INT8, Format

# This many products of two numbers up to 127 sum to less than 2^24.
_EXACT_INPUTS = 1024


@dataclass(frozen=True)
class QuantisedWeight:
    """A weight ``[out, in]`` as whole numbers times scales, with a minimum added if the format has one.

    Args:
        values: ``[out, in]`` int8, from minus the format's largest number to that number; from 0 with minima. GGUF
            files may also hold the number one below the lowest.
        scales: ``[out, groups]`` float32: the distance between neighbouring weights of a group of inputs, positive
            if we rounded the weight. The last group of a row may be shorter than the others.
        format: how they are stored.
        minima: ``[out, groups]`` float32, added to value times scale; None if the format has none.

    Source: int8 is the vector-wise absmax quantisation of weights of Dettmers et al. 2022 (LLM.int8(), arXiv
        2208.07339, sections 2.1 and 3.1); groups of inputs: Frantar et al. 2022 (GPTQ, arXiv 2210.17323, section 4).
        Inputs with a scale for each row ("int8-dynamic"): Yao et al. 2022 (ZeroQuant, arXiv 2206.01861, section 4.1).
    Deviations: no outlier columns are separated, and there are no zero points: a weight of 0 stays 0.
    """

    values: Tensor
    scales: Tensor
    format: Format = INT8
    minima: Tensor | None = None

    @classmethod
    def of(cls, weight: Tensor, name: str, format: Format = INT8) -> "QuantisedWeight":
        """Return a weight rounded to the nearest whole number of scales, halves to even.

        Args:
            weight: ``[out, in]``, of any float dtype; widened, or narrowed, to float32 first.
            name: of the layer, for errors.
            format: to round to.

        Raises:
            ValueError: a weight is NaN, infinite, or too large for float32, or its scale is too large for the scales'
                dtype.

        Guarantee: |w - dequantised| <= scale / 2, up to 2^-16 of a scale, by float32 rounding. If scales are rounded
            themselves, a group's largest weight may be off by a further 7 * 2^-8 of a scale in bfloat16, 7 * 2^-11 in
            float16.
        """
        wide = weight.detach().float()
        scales = fitting_scales(wide, name, format)
        return cls(round_to(wide, scales, format), scales, format)

    @classmethod
    def stack(cls, parts: Sequence["QuantisedWeight"]) -> "QuantisedWeight":
        """Return weights as one, with their outputs side by side.

        Raises:
            ValueError: they have different formats.
        """
        if len(names := {part.format.name for part in parts}) > 1:
            raise ValueError(f"weights of several formats cannot become one: {', '.join(sorted(names))}")
        minima = [part.minima for part in parts if part.minima is not None]
        return replace(
            parts[0],
            values=torch.cat([part.values for part in parts]),
            scales=torch.cat([part.scales for part in parts]),
            minima=torch.cat(minima) if minima else None,
        )

    def dequantise(self) -> Tensor:
        """Return ``[out, in]`` float32: each value times its scale, the group's minimum added, rounded once.

        With a minimum the product must be exact: it is for values of 4 bits with scales that are float16, or float16
        times 6 bits.
        """
        inputs = self.values.shape[1]
        products = self.values.float() * expand_scales(self.scales, inputs, self.format)
        return products if self.minima is None else products + expand_scales(self.minima, inputs, self.format)

    def product(self, x: Tensor) -> Tensor:
        """Return ``[..., out]``, the product of inputs ``[..., in]`` with the weight.

        If the format rounds inputs, a row x becomes round(x / s), halves to even, with s = max |x| / 127; the sum of
        products of whole numbers is exact; as float32 it is multiplied by s, then by the output's scale. If weights
        have groups, inputs have groups too, see ``_group_product``. So no row depends on another one.
        """
        if not self.format.rounds_inputs:
            return functional.linear(x, self.dequantise())
        rows = x.reshape(-1, x.shape[-1])
        if self.format.group is not None:
            return self._group_product(rows, self.format.group).reshape(*x.shape[:-1], -1)
        scales = fitting_scales(rows, "", INT8, check=False)
        sums = _whole_product(round_to(rows, scales, INT8), self.values)
        return (sums.float() * scales * self.scales.t()).reshape(*x.shape[:-1], -1)

    def _group_product(self, rows: Tensor, size: int) -> Tensor:
        """Return ``[R, out]``: each group, in order, adds its part by fused multiply-adds.

        For a group of inputs x: s = max |x| / 127 (at least float32's smallest normal number), q = round(x / s), halves
        to even, Q = the sum of q. For the group's weights with values w, scale d and minimum m: S = the sum of w q,
        exactly. The group adds S * (d * s), then m * (s * Q); each bracket is rounded once.
        """
        groups = replace(INT8, group=size)
        scales = fitting_scales(rows, "", groups, check=False)
        numbers = round_to(rows, scales, groups)
        total = torch.zeros(len(rows), len(self.values), device=rows.device)
        for group in range(scales.shape[1]):
            part = slice(group * size, (group + 1) * size)
            own, scale = numbers[:, part], scales[:, group, None]
            sums = _whole_product(own, self.values[:, part]).float()
            total = fused_multiply_add(sums, scale * self.scales[:, group], total)
            if self.minima is not None:
                shift = scale * own.sum(dim=1, keepdim=True).float()
                total = fused_multiply_add(shift, self.minima[:, group], total)
        return total

    def to(self, device: torch.device | str) -> "QuantisedWeight":
        """Return the same on a device."""
        return self.each(lambda part: part.to(device))

    def rows(self, taken: Tensor | slice) -> "QuantisedWeight":
        """Return some outputs only: those of numbers ``[R]``, or of a slice."""
        return self.each(lambda part: part[taken])

    def each(self, change: Callable[[Tensor], Tensor]) -> "QuantisedWeight":
        """Return the weight with values ``[out, in]``, scales and, if any, minima ``[out, groups]`` changed."""
        minima = None if self.minima is None else change(self.minima)
        return replace(self, values=change(self.values), scales=change(self.scales), minima=minima)

    @property
    def bytes(self) -> int:
        """Memory of values, scales and minima as they are held here: a byte for each value, whatever the format."""
        return self.values.nbytes + self.scales.nbytes + (0 if self.minima is None else self.minima.nbytes)


def fused_multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return a * b + c, rounded once, of float32 tensors ``[...]`` whose shapes can be broadcast.

    In float64 the product is exact. The sum is rounded to odd there (Boldo and Melquiond 2008: a remainder makes an
    even last bit odd), which rounds to float32 as the exact sum does.
    """
    product, c = a.double() * b.double(), c.double()
    total = product + c
    back = total - product
    left = (product - (total - back)) + (c - back)
    even = (total.view(torch.int64) & 1) == 0
    nudged = torch.nextafter(total, torch.copysign(torch.full_like(total, torch.inf), left))
    return torch.where(even & (left != 0) & total.isfinite(), nudged, total).float()


def _whole_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``[rows, out]`` int32, the exact product of int8 ``[rows, in]`` and ``[out, in]``.

    So few products are taken at a time that float32 holds every sum. (``torch._int_mm`` is not exact on every CPU: one
    without VNNI adds pairs of products in 16 bits.)
    """
    sums = torch.zeros(len(x), len(weight), dtype=torch.int32, device=x.device)
    for first in range(0, x.shape[1], _EXACT_INPUTS):
        part = slice(first, first + _EXACT_INPUTS)
        sums += (x[:, part].float() @ weight[:, part].float().t()).int()
    return sums


def fitting_scales(wide: Tensor, name: str, format: Format, check: bool = True) -> Tensor:
    """Return ``[out, groups]`` the smallest scales that hold weights ``[out, in]``: max |w| / the largest number.

    No scale lies below its dtype's smallest number of full precision, so nothing is divided by zero: a group of zeros,
    or of such small numbers, has that scale. bfloat16 and float16 scales are rounded to the nearest, so a group's
    largest weight may lie up to 2^-9 beyond the largest number, to which it is rounded.

    Raises:
        ValueError: see ``QuantisedWeight.of``.
    """
    rows, inputs = wide.shape
    size = format.group or inputs
    groups = functional.pad(wide, (0, -inputs % size)).view(rows, -1, size)
    scales = (groups.abs().amax(dim=2) / format.largest).clamp(min=torch.finfo(format.scales).tiny)
    scales = scales.to(format.scales).float()
    if check and not bool((scales * format.largest).isfinite().all()):
        raise ValueError(f"{name}: a weight is NaN, infinite or too large for {format.name}; mend the checkpoint")
    return scales


def expand_scales(scales: Tensor, inputs: int, format: Format) -> Tensor:
    """Return scales ``[out, groups]`` as ``[out, inputs]``, or as ``[out, 1]`` if all inputs share one."""
    return scales if format.group is None else scales.repeat_interleave(format.group, dim=1)[:, :inputs]


def round_to(wide: Tensor, scales: Tensor, format: Format) -> Tensor:
    """Return ``[out, in]`` int8: weights as the nearest whole numbers of scales ``[out, groups]``, halves to even."""
    numbers = (wide / expand_scales(scales, wide.shape[1], format)).round()
    return numbers.clamp(-format.largest, format.largest).to(torch.int8)


def round_straight_through(weight: Tensor, format: Format | None) -> Tensor:
    """Return a weight ``[out, in]`` for a product in training: rounded, with the gradient of the weight itself.

    Source: the straight-through estimator of Bengio et al. 2013 (arXiv 1308.3432).
    """
    if format is None:
        return weight
    wide = weight.detach().float()
    scales = fitting_scales(wide, "", format, check=False)
    rounded = round_to(wide, scales, format) * expand_scales(scales, wide.shape[1], format)
    return weight + (rounded - weight).detach()
