"""Bring hidden states to heads in passes of a few shapes, and cache the features that some heads make of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from oracles.graphed.buckets import MAX_NODES, cuts
from oracles.graphed.graphed_memory import GraphedCache, Memory
from oracles.graphed.graphed_nodes import PassNodes
from oracles.graphed.graphs import Graphs, Outputs
from oracles.graphed.upload import Call, PassIntegers, Upload
from oracles.transformer.config import TransformerConfig
from specdec.cache import FeatureSlots
from specdec.contracts import Features


class GraphedFeatureCache(FeatureSlots, GraphedCache):
    """A cache of graphed passes that holds features too, in the same memory.

    Args:
        memory: that holds its contents.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.features, self.known = memory.features, np.zeros(memory.num_rows, dtype=np.int64)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The payload ``[layers, 2, rows, K, slots, D]``, and the features ``[rows, slots + 1, feature_size]``."""
        return self.payload, self.features


@dataclass
class Arrival:
    """Bring the hidden states of positions to a head, up to ``MAX_NODES`` of them in a pass.

    Args:
        config: of the head's layers.
        take_in: is given nodes, one for each position, and their states ``[R * W, D]``, a tensor for each layer; it
            writes what the head makes of them to the memory of the nodes.
        upload: the head's way to the device.
        graphs: run the passes.
    """

    config: TransformerConfig
    take_in: Callable[[PassNodes, tuple[Tensor, ...]], None]
    upload: Upload
    graphs: Graphs
    _entering: Tensor | None = None

    def bring(self, features: Features, memory: Memory) -> None:
        """Take in the states of all positions; the scored states are read immediately.

        Cost: a copy to the device and a pass for up to 256 rows of up to 128 positions.
        """
        if not (most := int(features.counts.max(initial=0))):
            return
        whole = self._call(features, most)
        for group in cuts(len(features.rows), most, 0, False, memory.num_rows):
            for cut in group:
                asked = whole.part(cut.rows, cut.nodes)
                packed = self.upload(asked, cut.bucket)
                self.graphs.counts.count_nodes(asked.tokens.shape, cut.bucket)
                entering = self._place(packed, features.scored, memory.slots)
                compute = partial(self._compute, memory, packed, entering)
                self.graphs.run(memory, ("hidden states", cut.bucket), compute)

    def _call(self, features: Features, most: int) -> Call:
        """Return a call whose ids are the places of the positions' states among all that was scored."""
        batch, width = features.scored[0].shape[:2]
        columns = np.tile(np.arange(most), (batch, 1)) if features.columns is None else features.columns[:, :most]
        places = torch.from_numpy(np.arange(batch)[:, None] * width + columns)
        return Call(places, None, torch.from_numpy(features.counts), features.rows, features.starts, 0)

    def _place(self, packed: PassIntegers, scored: tuple[Tensor, ...], slots: Tensor) -> tuple[Tensor, ...]:
        """Return ``[R * W, D]`` states of each layer at an address that graphs know; any of them for padding.

        They have the dtype of ``slots``, the head's.
        """
        if self._entering is None:
            # Runs outside of inference mode write to it too.
            with torch.inference_mode(False):
                self._entering = slots.new_zeros(len(scored), MAX_NODES, scored[0].shape[-1])
        at = packed.tokens.flatten()
        entering = tuple(layer[: len(at)] for layer in self._entering.unbind(0))
        for layer, placed in zip(scored, entering, strict=True):
            torch.index_select(layer.flatten(0, 1).to(placed.dtype), 0, at, out=placed)
        return entering

    def _compute(self, memory: Memory, packed: PassIntegers, entering: tuple[Tensor, ...]) -> Outputs:
        self.take_in(PassNodes(self.config, packed, memory), entering)
        return ()
