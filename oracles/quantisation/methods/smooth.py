"""SmoothQuant: make large inputs smaller and their weights larger before both are rounded."""

import torch
from torch import Tensor

from oracles.quantisation.formats import Format
from oracles.quantisation.methods.block_calibration import Inputs, StageInputs
from oracles.quantisation.methods.stages import Stage, fold

# How much of the inputs' spread moves into the weights: 0 none of it, 1 all.
ALPHA = 0.5
# Neither an input nor a weight counts as smaller.
_LEAST_SIZE = 1e-5


def smooth_inputs(block: StageInputs, format: Format) -> None:
    """Smooth the inputs of a block's query, key and value projections and of its MLP, by the norms before them.

    Args:
        block: its stages, with their inputs.
        format: to round to, one that rounds inputs.

    Raises:
        ValueError: the format rounds no inputs.

    Source: Xiao et al. 2022 (SmoothQuant, arXiv 2211.10438, section 4, equation 4).
    Deviations: inputs are rounded with a scale for each row, as in the paper's setting O1; weights with one for each
        output, unlike there.
    """
    if not format.rounds_inputs:
        raise ValueError(
            f"smoothquant makes inputs easier to round, and {format.name!r} rounds none: choose 'int8-dynamic', or "
            "another method"
        )
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
