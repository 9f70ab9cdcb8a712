"""Features of heads: their cache, and how they get there in passes of few shapes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from oracles.graphed.buckets import MAX_NODES, Bucket, cuts
from oracles.graphed.graphed_memory import GraphedCache, Memory
from oracles.graphed.graphs import Graphs, Outputs
from oracles.graphed.upload import Call, Packed, Upload
from specdec.cache import FeatureSlots
from specdec.contracts import Features


class GraphedFeatureCache(FeatureSlots, GraphedCache):
    """A cache of graphed passes that holds features too, in the same memory.

    Args:
        memory: what holds it.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.features, self.known = memory.features, np.zeros(memory.num_rows, dtype=np.int64)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The payload, and the features."""
        return self.payload, self.features


@dataclass
class Arrival:
    """Combine the hidden states of positions to features, a pass for up to ``MAX_NODES`` of them.

    Args:
        combine: returns features ``[N, F]`` of hidden states ``[N, D]``, one tensor a layer.
        upload: the head's way to the device.
        graphs: run the passes.
    """

    combine: Callable[[tuple[Tensor, ...]], Tensor]
    upload: Upload
    graphs: Graphs
    _entering: Tensor | None = None

    def put(self, features: Features, cache: GraphedFeatureCache) -> None:
        """Let features be known; see ``specdec.cache.FeatureSlots.put``. What was scored is read at once.

        Raises:
            ValueError: see there.

        Cost: a copy to the device and a pass for up to 64 rows of up to 128 positions.
        """
        rows, starts, counts = features.rows, features.starts, features.counts
        cache.check_put(rows, starts, counts)
        if (most := int(counts.max(initial=0))) > 0:
            for group in cuts(len(rows), most, 0, False, cache.memory.num_rows):
                for cut in group:
                    self._pass(self._call(features, most).part(cut.rows, cut.nodes), cut.bucket, features, cache.memory)
        cache.known[rows] = starts + counts

    def _call(self, features: Features, most: int) -> Call:
        """Return a call whose ids are places: where among all that was scored the states of positions stand."""
        batch, width = features.scored[0].shape[:2]
        columns = np.tile(np.arange(most), (batch, 1)) if features.columns is None else features.columns[:, :most]
        places = torch.from_numpy(np.arange(batch)[:, None] * width + columns)
        return Call(places, None, torch.from_numpy(features.counts), features.rows, features.starts, 0)

    def _pass(self, call: Call, bucket: Bucket, features: Features, memory: Memory) -> None:
        packed = self.upload(call, bucket)
        entering = self._place(packed, features.scored)
        self.graphs.run(memory, ("features", bucket), partial(self._compute, memory, bucket, packed, entering))

    def _place(self, packed: Packed, scored: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return ``[R * W, D]`` states of each layer at an address that graphs know; any of them for padding."""
        if self._entering is None:
            # Runs outside of inference mode write to it too.
            with torch.inference_mode(False):
                self._entering = scored[0].new_zeros(len(scored), MAX_NODES, scored[0].shape[-1])
        at = packed.tokens.flatten()
        entering = tuple(layer[: len(at)] for layer in self._entering.unbind(0))
        for layer, placed in zip(scored, entering, strict=True):
            torch.index_select(layer.flatten(0, 1), 0, at, out=placed)
        return entering

    def _compute(self, memory: Memory, bucket: Bucket, packed: Packed, entering: tuple[Tensor, ...]) -> Outputs:
        index = packed.firsts.unsqueeze(1) + torch.arange(bucket.width, device=packed.rows.device)
        positions, is_real = packed.starts.unsqueeze(1) + index, index < packed.num_nodes.unsqueeze(1)
        memory.write_features(packed.rows, positions, is_real, self.combine(entering))
        return ()
