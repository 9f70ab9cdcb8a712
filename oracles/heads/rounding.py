"""The weights of a head's linear layers, rounded as those of a transformer are."""

from torch import nn

from oracles.quantisation import FORMATS
from oracles.transformer.linear import Linear, round_weight


def store(network: nn.Module, weight_type: str) -> None:
    """Round the weights of all linear layers to a type, in place; see ``Transformer.store``."""
    for name, part in network.named_modules():
        if isinstance(part, Linear) and weight_type in FORMATS:
            part.quantise(name, FORMATS[weight_type])
        elif isinstance(part, Linear):
            round_weight(part, name, weight_type)


def dequantise(network: nn.Module) -> None:
    """Make quantised weights plain ones again, in place; see ``Transformer.dequantise``."""
    for part in network.modules():
        if isinstance(part, Linear):
            part.dequantise()
