"""SmoothQuant: make large inputs smaller and their weights larger before both are rounded."""

from itertools import chain

import torch
from torch import Tensor

from oracles.quantisation.formats import Format
from oracles.quantisation.methods.checking import check_calibration
from oracles.quantisation.methods.inputs import Inputs, blocks_with_inputs
from oracles.quantisation.methods.stages import Stage, fold
from oracles.transformer.eager import Transformer

# How much of the inputs' spread moves into the weights: 0 none of it, 1 all.
ALPHA = 0.5
# Neither an input nor a weight counts as smaller.
_LEAST_SIZE = 1e-5


@torch.no_grad()
def by_smoothing(model: Transformer, format: Format, ids: Tensor) -> None:
    """Quantise a model to the nearest after its inputs were smoothed, in place.

    Inputs of query, key and value projections and of the MLP are smoothed, by the norms before them.

    Args:
        model: as it trains, in float32.
        format: to round to, one that rounds inputs.
        ids: ``[B, T]`` int64 of text for calibration, never of text that measures.

    Raises:
        ValueError: the format rounds no inputs; as in ``check_calibration``; inputs are not finite; as in
            ``Transformer.quantise``.

    Source: Xiao et al. 2022 (SmoothQuant, arXiv 2211.10438, section 4, equation 4).
    Deviations: inputs are rounded with a scale for each row, as in the paper's setting O1; weights with one for each
        output, unlike there.

    Cost: that of ``blocks_with_inputs``.
    """
    if not format.rounds_inputs:
        raise ValueError(
            f"smoothquant makes inputs easier to round, and {format.name!r} rounds none: choose 'int8-dynamic', or "
            "another method"
        )
    check_calibration(model, ids)
    for stage, inputs in chain.from_iterable(blocks_with_inputs(model, ids)):
        if stage.after_norm:
            fold(stage, smoothing_scales(stage, inputs))
    model.quantise(format)


@torch.no_grad()
def smoothing_scales(stage: Stage, inputs: Inputs) -> Tensor:
    """Return ``[in]`` the scales max(|x|)^a / max(|w|)^(1 - a), a = ``ALPHA``, over all layers of a stage.

    Args:
        stage: after a norm; each input has a channel of its own.
        inputs: of the stage.
    """
    weights = torch.cat([layer.weight for layer in stage.layers.values() if layer.weight is not None])
    largest = weights.abs().amax(0).clamp(min=_LEAST_SIZE)
    return inputs.largest.clamp(min=_LEAST_SIZE).pow(ALPHA) / largest.pow(1 - ALPHA)
