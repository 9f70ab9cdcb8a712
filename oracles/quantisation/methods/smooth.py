"""SmoothQuant: make large inputs smaller and their weights larger before both are rounded."""

import torch
from torch import Tensor

from oracles.quantisation.formats import Format
from oracles.quantisation.methods.block_calibration import Inputs, StageInputs, calibrate_blocks
from oracles.quantisation.methods.stages import Stage, fold
from oracles.transformer.eager import Transformer

# How much of the inputs' spread moves into the weights: 0 none of it, 1 all.
ALPHA = 0.5
# Neither an input nor a weight counts as smaller.
_LEAST_SIZE = 1e-5


def quantise_smoothed(model: Transformer, format: Format, ids: Tensor) -> None:
    """Quantise a model in place after its inputs were smoothed.

    Inputs of query, key and value projections and of the MLP are smoothed, by the norms before them.

    Args:
        model: as it trains, in float32.
        format: to round to, one that rounds inputs.
        ids: ``[B, T]`` int64 of text for calibration, never of text that measures.

    Raises:
        ValueError: the format rounds no inputs; as in ``calibrate_blocks``.

    Source: Xiao et al. 2022 (SmoothQuant, arXiv 2211.10438, section 4, equation 4).
    Deviations: inputs are rounded with a scale for each row, as in the paper's setting O1; weights with one for each
        output, unlike there.
    """
    if not format.rounds_inputs:
        raise ValueError(
            f"smoothquant makes inputs easier to round, and {format.name!r} rounds none: choose 'int8-dynamic', or "
            "another method"
        )
    calibrate_blocks(_smooth, model, format, ids)


def _smooth(block: StageInputs, _: Format) -> None:
    for stage, inputs in block:
        if stage.after_norm:
            fold(stage, smoothing_scales(stage, inputs))


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
