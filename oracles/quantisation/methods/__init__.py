"""What can be done to a model's weights before they are rounded, by name."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from oracles.quantisation.formats import Format
from oracles.quantisation.methods.awq import scale_and_clip
from oracles.quantisation.methods.block_calibration import calibrate_blocks
from oracles.quantisation.methods.gptq import quantise_by_feedback
from oracles.quantisation.methods.smooth import quantise_smoothed
from oracles.transformer.eager import Transformer

# Quantises a model in place, to a format, calibrated on ids [B, T].
Method = Callable[[Transformer, Format, Tensor], None]


def to_nearest(model: Transformer, format: Format, ids: Tensor) -> None:
    """Quantise a model to the nearest, in place; the ids ``[B, T]`` are not used.

    Raises:
        ValueError: see ``Transformer.quantise``.
    """
    model.quantise(format)


METHODS: dict[str, Method] = {
    "nearest": to_nearest,
    "gptq": partial(calibrate_blocks, quantise_by_feedback),
    "awq": partial(calibrate_blocks, scale_and_clip),
    "smoothquant": quantise_smoothed,
}
