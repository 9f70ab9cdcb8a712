"""A pass of static shape, the same function with and without a graph."""

from dataclasses import dataclass

from torch import Tensor

from oracles.graphed.attention import SlotAttention
from oracles.graphed.buckets import Bucket
from oracles.graphed.memory import Memory
from oracles.graphed.upload import Packed
from oracles.transformer import Transformer


@dataclass(frozen=True)
class Part:
    """Which part of the model a pass runs.

    Attributes:
        layers: (lowest, last): the layers lowest .. last - 1.
        hidden: those whose outputs are returned.
    """

    layers: tuple[int, int]
    hidden: tuple[int, ...]


def run_pass(
    model: Transformer, memory: Memory, bucket: Bucket, part: Part, packed: Packed, stream: Tensor | None
) -> tuple[Tensor, ...]:
    """Return the residual stream after the last layer of the part, and those after its hidden layers, ``[R * W, D]``.

    Args:
        model: packed.
        memory: of the cache; keys and values of real nodes are written to it.
        bucket, part: what the pass is.
        packed: the integers of the call, on the device.
        stream: ``[R * W, D]`` before the lowest layer; None: it is layer 0.

    Guarantee: nothing here waits for the device, and no shape depends on what a tensor holds.
    """
    attend = SlotAttention(model.config, bucket, packed, memory)
    last = model.max_context - 1
    positions = attend.positions.clamp(max=last).flatten()
    streams = model.model(packed.tokens.flatten(), positions, last + 1, attend, part.layers, stream)
    return (streams[-1], *(streams[layer - part.layers[0]] for layer in part.hidden))
