"""A pass of static shape: the same function with and without a graph."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from oracles.graphed.buckets import MAX_NODES
from oracles.graphed.graphed_attention import MaskedAttention
from oracles.graphed.graphed_memory import Memory
from oracles.graphed.graphed_nodes import PassNodes
from oracles.graphed.tiles import by_tiles, pad_to_tiles
from oracles.graphed.upload import PassIntegers
from oracles.transformer.attention import Attend
from oracles.transformer.blocks import Apply, at_once
from oracles.transformer.eager import Transformer


@dataclass(frozen=True)
class PassPart:
    """Which part of the model a pass runs.

    Attributes:
        layers: (lowest, last): the layers lowest .. last - 1; None: all.
        hidden: those whose outputs are returned.
    """

    layers: tuple[int, int] | None = None
    hidden: tuple[int, ...] = ()


@dataclass(frozen=True)
class PassMode:
    """How passes compute.

    Attributes:
        attention: makes the attention of a pass.
        in_tiles: everything except the attention is computed in tiles of rows.
        distinct_nodes: passes of more nodes than this repeat the operations of smaller ones, shape by shape.
    """

    attention: Callable[[PassNodes], Attend] = MaskedAttention
    in_tiles: bool = False
    distinct_nodes: int = MAX_NODES


RunPass = Callable[[Memory, PassPart, PassIntegers, Tensor | None], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Passes:
    """The passes of a model or a head, and how they compute.

    Attributes:
        run: computes one; see ``run_pass``, whose model and way it has.
        head: returns logits ``[R, V]`` of streams ``[R, D]`` after the last layer.
        way: as of ``run``.
    """

    run: RunPass
    head: Callable[[Tensor], Tensor]
    way: PassMode

    def read_out(self, stream: Tensor) -> Tensor:
        """Return logits ``[R, V]`` of streams ``[R, D]``, in tiles if passes compute so."""
        return self.in_tiles(self.head)(stream)

    def in_tiles(self, compute: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return a function that applies ``compute`` to rows ``[N, X]``, in tiles if passes compute so."""
        return partial(by_tiles, compute) if self.way.in_tiles else compute


def run_pass(
    model: Transformer,
    way: PassMode,
    memory: Memory,
    part: PassPart,
    packed: PassIntegers,
    stream: Tensor | None,
) -> tuple[Tensor, ...]:
    """Return the residual stream after the last layer of the part, and those after its hidden layers, ``[R * W, D]``.

    Args:
        model: packed.
        way: how it computes.
        memory: of the cache; keys and values of real nodes are written to it.
        part: of the model, which it runs.
        packed: the integers of the call, on the device, and the shape of the pass.
        stream: ``[R * W, D]`` before the lowest layer; None: it is layer 0.

    Guarantee: nothing here waits for the device, and no shape depends on what a tensor holds.
    """
    nodes, count = PassNodes(model.config, packed, memory), packed.bucket.nodes
    attend, last = way.attention(nodes), model.max_context - 1
    tokens, positions = packed.tokens.flatten(), nodes.positions.clamp(max=last).flatten()
    if way.in_tiles:
        tokens, positions = pad_to_tiles(tokens), pad_to_tiles(positions)
        stream = None if stream is None else pad_to_tiles(stream)
        attend = _without_padding(attend, count)
    apply: Apply = by_tiles if way.in_tiles else at_once
    streams = model.model(tokens, positions, last + 1, attend, part.layers, stream, apply)
    lowest = 0 if part.layers is None else part.layers[0]
    outputs = (streams[-1], *(streams[layer - lowest] for layer in part.hidden))
    return tuple(output[:count] for output in outputs)


def _without_padding(attend: Attend, count: int) -> Attend:
    """Return an attention for whole tiles in which only the first ``count`` nodes attend."""

    def attend_padded(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return pad_to_tiles(attend(layer, query[:count], key[:count], value[:count]))

    return attend_padded
