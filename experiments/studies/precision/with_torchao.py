"""torchao's int8 weights, and int8 inputs too, in the project's own layers: an optional peer of ours."""

from importlib.util import find_spec

from torch import Tensor, nn

from oracles.transformer.eager import Transformer
from oracles.transformer.linear import Linear, plain_tensors
from specdec.system import quiet_imports

EXTRA = "torchao is not installed: pip install 'exactspec[torchao]'"
INT8_INPUTS = "int8-dynamic"


def is_installed() -> bool:
    """Whether the package is there."""
    return find_spec("torchao") is not None


def quantise(model: Transformer, weights: str) -> Transformer:
    """Round the linear layers in place with torchao, a scale for each output; embeddings stay, tied ones too.

    Args:
        model: in float32.
        weights: "int8"; or "int8-dynamic", where each row of inputs is rounded to int8 too.

    Raises:
        ImportError: torchao is not installed.
    """
    if not is_installed():
        raise ImportError(EXTRA)
    with quiet_imports():
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

    # Its default also changes settings of torch's compiler, for the whole process.
    kind = Int8DynamicActivationInt8WeightConfig if weights == INT8_INPUTS else Int8WeightOnlyConfig
    quantize_(model, kind(set_inductor_config=False), filter_fn=lambda layer, _: isinstance(layer, Linear))
    return model


def bytes_read(model: Transformer, widened: int) -> int:
    """Return the bytes that a pass reads and writes of weights.

    Args:
        model: from ``quantise``.
        widened: bytes that the product moves for each byte that torchao holds.
    """
    held = sum(part.nbytes for _, weight in _layers(model) for part in plain_tensors(weight))
    return model.weight_bytes + (widened - 1) * held


def dequantise(model: Transformer) -> Transformer:
    """Replace, in place, the weights that torchao rounded by the float32 numbers that they stand for."""
    for layer, weight in _layers(model):
        rounded: Tensor = weight.dequantize()
        layer.weight = nn.Parameter(rounded, requires_grad=False)
    return model


def _layers(model: Transformer) -> list[tuple[Linear, Tensor]]:
    """Return the layers with their weights."""
    layers = (layer for layer in model.modules() if isinstance(layer, Linear))
    return [(layer, layer.weight) for layer in layers if layer.weight is not None]
