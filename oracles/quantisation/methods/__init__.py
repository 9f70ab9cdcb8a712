"""What can be done to a model's weights before they are rounded, by name."""

from collections.abc import Callable

from torch import Tensor

from oracles.quantisation.formats import Format
from oracles.quantisation.methods.awq import by_awq
from oracles.quantisation.methods.gptq import by_gptq
from oracles.quantisation.methods.smooth import by_smoothing
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
    "gptq": by_gptq,
    "awq": by_awq,
    "smoothquant": by_smoothing,
}
