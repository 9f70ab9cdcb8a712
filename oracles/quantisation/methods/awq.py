"""AWQ: scale up the weights of large inputs before rounding, which makes their errors smaller."""

import torch
from torch import Tensor

from oracles.quantisation.formats import Format
from oracles.quantisation.methods.checking import check_calibration
from oracles.quantisation.methods.clipping import clip_and_round
from oracles.quantisation.methods.inputs import Inputs, blocks_with_inputs
from oracles.quantisation.methods.stages import Stage, fold
from oracles.quantisation.quantised import QuantisedWeight
from oracles.transformer.eager import Transformer

# Steps of alpha from 0 to 1.
STEPS = 20
# Errors of queries and keys are multiplied with each other: these are not clipped.
UNCLIPPED = ("q_proj", "k_proj")
# The smallest mean size that an input counts as having.
_LEAST_SIZE = 1e-4


@torch.no_grad()
def by_awq(model: Transformer, format: Format, ids: Tensor) -> None:
    """Quantise a model with clipped weights, in place, after folding scales of inputs into the layers before.

    A block's inputs come from the quantised blocks before it and the unchanged embeddings. The head is rounded to the
    nearest, and so are queries and keys after scaling.

    Args:
        model: as it trains, in float32.
        format: to round to; if it rounds inputs, only the weights' errors count.
        ids: ``[B, T]`` int64 of text for calibration, never of text that measures.

    Raises:
        ValueError: as in ``check_calibration``; inputs are not finite; as in ``Transformer.quantise``.

    Source: Lin et al. 2023 (AWQ, arXiv 2306.00978, section 3.2, equations 4 and 5; clipping as in ``clip_and_round``).
    Deviations: the error is that of the linear layers, as in equation 4; the authors' code takes that of a whole
        attention or MLP for inputs after a norm, and gathers all inputs before anything is rounded; more in ``fold``.

    Cost: as of ``blocks_with_inputs``; for each layer also ``STEPS`` + 1 times 2 * out * in^2 operations, and a
    ``clip_and_round``.
    """
    check_calibration(model, ids)
    for block in blocks_with_inputs(model, ids):
        grams = [fold_best(stage, inputs, format) for stage, inputs in block]
        for (stage, _), gram in zip(block, grams, strict=True):
            for name, layer in stage.layers.items():
                if not name.endswith(UNCLIPPED):
                    assert layer.weight is not None, "checked before"
                    layer.quantised, layer.weight = clip_and_round(layer.weight, gram, name, format), None
    model.quantise(format)


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
