"""Move scales between the channels of linear layers and what writes their inputs, which changes no output."""

import torch
from torch import Tensor

from oracles.quantisation.methods.stages import Stage


@torch.no_grad()
def fold(stage: Stage, scales: Tensor) -> None:
    """Divide what writes a stage's inputs by scales, and multiply the weights that read them, in place.

    X W^T = (X / s) (W s)^T. The division goes into the weight and bias of a norm, or into the rows and the bias of a
    linear layer, so that all weights stay ordinary ones.

    Args:
        stage: with a writer.
        scales: ``[channels]`` of the writer, finite and positive.

    Raises:
        ValueError: the stage has no writer, or scales are of another length, not finite or not positive.

    Guarantee: the model's outputs stay the same, up to rounding.

    Source: Xiao et al. 2022 (SmoothQuant, arXiv 2211.10438, section 4, equation 3); Lin et al. 2023 (AWQ, arXiv
        2306.00978, section 3.2), whose code also folds into value and up projections.
    Deviations: query heads that share values share scales, where AWQ's code leaves such output projections alone; and
        inputs behind a curved activation are left alone, where it adds a layer that divides.
    """
    writer = stage.writer
    if writer is None or writer.weight is None:
        raise ValueError(f"{stage.name}: scales of its inputs cannot be folded into what comes before it")
    usable = scales.shape == writer.weight.shape[:1] and bool((scales.isfinite() & (scales > 0)).all())
    if not usable:
        need = f"give {len(writer.weight)} finite positive ones"
        raise ValueError(f"{stage.name}: scales {list(scales.shape)} cannot be folded: {need}")
    writer.weight.div_(scales if stage.after_norm else scales.unsqueeze(1))
    if writer.bias is not None:
        writer.bias.div_(scales)
    for layer in stage.layers.values():
        assert layer.weight is not None, "a stage that is folded has plain weights"
        layer.weight.mul_(stage.to_inputs(scales))
