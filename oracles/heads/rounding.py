"""A read-out that is held as the oracle holds its own."""

import torch
from torch import nn

from oracles.quantisation import FLOATS, STORED, Quantised
from oracles.transformer.linear import Linear


def narrow(layer: Linear, name: str, weight_type: str) -> None:
    """Hold a layer's float32 weight as an oracle stores its own, in place, if every number stays as it is.

    Args:
        layer: as it was read.
        name: of the layer, for errors.
        weight_type: the oracle's; one that is no dtype and no format of a GGUF file changes nothing.
    """
    stored, weight = STORED.get(weight_type.removesuffix("-int8")), layer.weight
    if weight is None:
        return
    if stored is not None:
        fewer = Quantised.of(weight, name, stored)
        if torch.equal(fewer.dequantise(), weight):
            layer.quantised, layer.weight = fewer, None
    elif weight_type in FLOATS:
        part = weight.detach().to(getattr(torch, weight_type))
        if torch.equal(part.float(), weight):
            layer.weight = nn.Parameter(part, requires_grad=False)
