"""An EAGLE-3 head beside a graphed oracle, wherever that lies."""

from typing import Any

import torch

from oracles.heads import AuxLayers, Eagle3Network, Eagle3Shape, GraphedEagle3Head
from oracles.transformer.config import TransformerConfig
from tests.graphed.emulated import CUDA

HEAD_SIZE = 8


def head_beside(oracle: Any, seed: int = 3) -> GraphedEagle3Head:
    """Return a head of random weights, with a read-out of some ids; it embeds by the oracle's table."""
    sizes = {"hidden_size": oracle.hidden_size, "intermediate_size": 24, "num_layers": 1}
    heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": HEAD_SIZE}
    config = TransformerConfig(vocab_size=oracle.vocab_size, max_context=64, **sizes, **heads)
    layers = AuxLayers((0, 1, 1), "outputs", "a test", oracle.hidden_layers)
    shape = Eagle3Shape(config, oracle.hidden_size, layers, norm_output=True)
    network = Eagle3Network(shape, False, True, torch.arange(0, oracle.vocab_size, 2))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.3 * noise)
    network = network.to(oracle.dtype)
    if oracle.device == CUDA and not torch.cuda.is_available():  # of a test
        network = _moved(network, shape)
    return GraphedEagle3Head(network.to(oracle.device), shape, oracle, "a test")


def _moved(network: Eagle3Network, shape: Eagle3Shape) -> Eagle3Network:
    """Return the network on the emulated device."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(network.norm.weight.dtype)  # there, a parameter cannot be given another type
    try:
        with CUDA:
            there = Eagle3Network(shape, False, True, torch.arange(0, shape.config.vocab_size, 2))
    finally:
        torch.set_default_dtype(default)
    with torch.no_grad():
        for mine, other in zip(there.parameters(), network.parameters(), strict=True):
            mine.copy_(other)
    return there
