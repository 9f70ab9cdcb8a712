"""AWQ: scale up the weights of large inputs before rounding, which makes their errors smaller, and clip the largest.

A clipped weight has scales that are too small for it: all others are rounded more finely.
"""

import torch
from torch import Tensor
from torch.nn import functional

from oracles.quantisation.formats import Format
from oracles.quantisation.methods.block_calibration import Inputs, StageInputs
from oracles.quantisation.methods.stages import Stage, fold
from oracles.quantisation.quantised import QuantisedWeight, expand_scales, fitting_scales, round_to

# Steps of alpha from 0 to 1.
STEPS = 20
# Errors of queries and keys are multiplied with each other: these are not clipped.
UNCLIPPED = ("q_proj", "k_proj")
# Factors on the scales that hold all weights: 1, 0.95, ..., 0.55.
RATIOS = tuple(1 - step / 20 for step in range(10))
# The smallest mean size that an input counts as having.
_LEAST_SIZE = 1e-4


def scale_and_clip(block: StageInputs, format: Format) -> None:
    """Quantise a block with clipped weights, in place, after folding scales of inputs into the layers before.

    Queries and keys are only scaled.

    Args:
        block: its stages, with their inputs.
        format: to round to; if it rounds inputs, only the weights' errors count.

    Source: Lin et al. 2023 (AWQ, arXiv 2306.00978, section 3.2, equations 4 and 5; clipping as in ``clip_and_round``).
    Deviations: the error is that of the linear layers, as in equation 4; the authors' code takes that of a whole
        attention or MLP for inputs after a norm, and gathers all inputs before anything is rounded; more in ``fold``.

    Cost: for each layer ``STEPS`` + 1 times 2 * out * in^2 operations, and a ``clip_and_round``.
    """
    grams = [fold_best(stage, inputs, format) for stage, inputs in block]
    for (stage, _), gram in zip(block, grams, strict=True):
        for name, layer in stage.layers.items():
            if not name.endswith(UNCLIPPED):
                assert layer.weight is not None, "checked before"
                layer.quantised, layer.weight = clip_and_round(layer.weight, gram, name, format), None


def fold_best(stage: Stage, inputs: Inputs, format: Format) -> Tensor:
    """Fold the best scales of a stage, if it has a writer; return X^T X ``[in, in]`` float32 of its new inputs."""
    gram = inputs.gram.float()
    if stage.writer is None:
        return gram
    scales = best_scales(stage, inputs, format)
    fold(stage, scales)
    divided = stage.to_inputs(scales)
    return gram / divided / divided.unsqueeze(1)


def best_scales(stage: Stage, inputs: Inputs, format: Format) -> Tensor:
    """Return ``[channels]`` the scales s = mean(|x|)^alpha, alpha in 0, 1/20, ..., 1, with the least error of outputs.

    Scales are divided by the root of the largest times the smallest; they are 1 at alpha 0. The first of equals wins.

    Args:
        stage: with a writer.
        inputs: of the stage.
        format: to round to.
    """
    sizes = stage.to_channels(inputs.mean_size).clamp(min=_LEAST_SIZE)
    powers = (sizes.pow(step / STEPS) for step in range(STEPS + 1))
    candidates = [scales / (scales.max() * scales.min()).sqrt() for scales in powers]
    gram = inputs.gram.float()
    errors = [error_of_outputs(stage, gram, format, stage.to_inputs(scales)) for scales in candidates]
    return candidates[errors.index(min(errors))]


@torch.no_grad()
def error_of_outputs(stage: Stage, gram: Tensor, format: Format, scales: Tensor) -> float:
    """Return |X W'^T - X W^T|^2, summed over a stage's layers, for W' the rounded W s over s.

    Args:
        stage: the layers.
        gram: ``[in, in]`` X^T X, in the weights' dtype.
        format: to round to.
        scales: s ``[in]``.
    """
    total = 0.0
    for name, layer in stage.layers.items():
        assert layer.weight is not None, "a stage that is searched has plain weights"
        off = QuantisedWeight.of(layer.weight * scales, name, format).dequantise() / scales - layer.weight
        total += float(((off @ gram) * off).sum(dtype=torch.float64))
    return total


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
