"""Scales too small for the largest weight: it is clipped, and all others are rounded more finely."""

import torch
from torch import Tensor
from torch.nn import functional

from oracles.quantisation.formats import Format
from oracles.quantisation.quantised import QuantisedWeight, expand_scales, fitting_scales, round_to

# Factors on the scales that hold all weights: 1, 0.95, ..., 0.55.
RATIOS = tuple(1 - step / 20 for step in range(10))


@torch.no_grad()
def clip_and_round(weight: Tensor, gram: Tensor, name: str, format: Format) -> QuantisedWeight:
    """Return a weight rounded to the nearest with the scale of each group that gives the least error of outputs.

    The error of a group of inputs X is |X w'^T - X w^T|^2 for an output's weights w and the rounded ones w'. The first
    of equals wins.

    Args:
        weight: ``[out, in]`` float32.
        gram: ``[in, in]`` float32, X^T X of the inputs.
        name: of the layer, for errors.
        format: to round to.

    Raises:
        ValueError: as in ``QuantisedWeight.of``.

    Guarantee: no group's error is larger than with the scale that holds its largest weight.

    Source: Lin et al. 2023 (AWQ, arXiv 2306.00978, end of section 3.2, and the function ``auto_clip`` of its code).

    Deviations: all calibration inputs count; the code takes a sample of them.

    Cost: 2 * out * in * group operations for each of ``RATIOS``.
    """
    grams = _of_groups(gram, format.group or len(gram))
    best = fitting_scales(weight, name, format)
    least = _errors(weight, grams, best, format)
    for ratio in RATIOS[1:]:
        scales = fitting_scales(weight * ratio, name, format)
        errors = _errors(weight, grams, scales, format)
        best, least = torch.where(errors < least, scales, best), torch.minimum(errors, least)
    return QuantisedWeight(round_to(weight, best, format), best, format)


def _errors(weight: Tensor, grams: Tensor, scales: Tensor, format: Format) -> Tensor:
    """Return ``[out, groups]``, the error of each group."""
    inputs, size = weight.shape[1], grams.shape[1]
    off = round_to(weight, scales, format) * expand_scales(scales, inputs, format) - weight
    # [out, in] -> [groups, out, size]
    groups = functional.pad(off, (0, -inputs % size)).view(len(off), -1, size).transpose(0, 1)
    return ((groups @ grams) * groups).sum(2).t()


def _of_groups(gram: Tensor, size: int) -> Tensor:
    """Return ``[groups, size, size]``, X^T X of each group of inputs, the last one padded with zeros."""
    missing = -len(gram) % size
    padded = functional.pad(gram, (0, missing, 0, missing))
    return torch.stack([part[:, i * size : (i + 1) * size] for i, part in enumerate(torch.split(padded, size))])
