"""Heads beside a graphed oracle, wherever that lies."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from oracles.heads import (
    AuxLayers,
    BlockNetwork,
    BlockShape,
    Eagle3Network,
    Eagle3Shape,
    GraphedBlockHead,
    GraphedEagle3Head,
)
from oracles.transformer.config import TransformerConfig
from tests.graphed.emulated import CUDA

BLOCK_SIZE = 5
Network = TypeVar("Network", bound=nn.Module)


def head_beside(oracle: Any) -> GraphedEagle3Head:
    """Return an EAGLE-3 head of random weights, with a read-out of some ids; it embeds by the oracle's table."""
    layers = AuxLayers((0, 1, 1), "outputs", "a test", oracle.hidden_layers)
    shape = Eagle3Shape(_config(oracle), oracle.hidden_size, layers, norm_output=True)
    network = _beside(oracle, lambda: Eagle3Network(shape, False, True, torch.arange(0, oracle.vocab_size, 2)))
    return GraphedEagle3Head(network, shape, oracle, "a test")


def block_beside(oracle: Any) -> GraphedBlockHead:
    """Return a block drafter of random weights with a Markov head; embeddings and read-out are the oracle's."""
    size = oracle.vocab_size
    shape = BlockShape(_config(oracle), (0, 1), BLOCK_SIZE, size - 1, True, size, markov="rnn", markov_rank=4)
    network = _beside(oracle, lambda: BlockNetwork(shape, oracle.hidden_size))
    return GraphedBlockHead(shape, network, oracle, None)


def _config(oracle: Any) -> TransformerConfig:
    sizes = {"hidden_size": oracle.hidden_size, "intermediate_size": 24, "num_layers": 1}
    heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
    return TransformerConfig(vocab_size=oracle.vocab_size, max_context=oracle.max_context, **sizes, **heads)


def _beside(oracle: Any, make: Callable[[], Network]) -> Network:
    """Return a network of random weights where an oracle lies, and in its dtype."""
    network, generator = make(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.3 * noise)
    network = network.to(oracle.dtype)
    if oracle.device != CUDA or torch.cuda.is_available():
        return network.to(oracle.device)
    default = torch.get_default_dtype()
    torch.set_default_dtype(oracle.dtype)  # on an emulated device a parameter cannot be given another type
    try:
        with CUDA:
            there = make()
    finally:
        torch.set_default_dtype(default)
    with torch.no_grad():
        for mine, other in zip(there.parameters(), network.parameters(), strict=True):
            mine.copy_(other)
    return there
