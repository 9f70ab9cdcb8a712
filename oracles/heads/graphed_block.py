"""A block drafter in passes of a few shapes, each a CUDA graph from its second use on."""

from dataclasses import replace

import torch
from torch import Tensor

from oracles.graphed import GraphedTransformer
from oracles.graphed.graphed_chains import follow
from oracles.graphed.graphed_features import Arrival
from oracles.graphed.graphed_memory import GraphedCache, Memory, Shelf
from oracles.graphed.graphed_nodes import PassNodes
from oracles.graphed.graphed_passes import Passes, PassPart
from oracles.graphed.graphed_scoring import GraphedScoring
from oracles.graphed.graphs import Outputs
from oracles.graphed.upload import Call, PassIntegers
from oracles.graphed.ways import way_of
from oracles.heads.block_head import DFlashBlock, TorchBlockHead
from oracles.heads.block_network import BlockNetwork, BlockShape, LayerReach, keys_and_values
from oracles.transformer.config import TransformerConfig
from oracles.transformer.rotary import Rope
from specdec.contracts import Draft, Features, IntArray
from specdec.transfers import HOST


class BlockNodes(PassNodes):
    """The nodes of blocks of one size, as a layer sees them.

    Args:
        reach: what they see.
        config, packed, memory: see ``PassNodes``.
        size: tokens of a block.

    Attributes:
        positions: ``[R, W]`` up to which each node sees; its own place is in ``slots``.
    """

    def __init__(
        self, reach: LayerReach, config: TransformerConfig, packed: PassIntegers, memory: Memory, size: int
    ) -> None:
        # Counted from the end of its block, a window over the context includes the block.
        window = None if reach.window is None else reach.window + size * reach.ahead
        super().__init__(replace(config, sliding_window=window), packed, memory)
        if reach.ahead:
            self.positions = (self.start + packed.num_nodes.unsqueeze(1) - 1).expand_as(self.slots).contiguous()


class GraphedBlockHead(GraphedScoring[GraphedCache], TorchBlockHead):
    """Compute the laws of blocks as ``DFlashHead`` does, in the shapes and graphs of a graphed oracle.

    Args:
        shape, network, target_ids: see ``TorchBlockHead``.
        oracle: lends its embeddings and its read-out if the network has none. The head has its own graphs, of the same
            number of shapes.

    Attributes:
        counts: of its passes, including those that take in hidden states.

    Guarantee: laws are those of ``DFlashHead`` up to rounding. Nothing in a call waits for the device.
    Cost: a block takes one copy to the device, and one pass of ``block_size`` tokens for each row. Between runs it
        keeps the memory of one cache, and always the hidden states of ``MAX_NODES`` positions.
    Source: Chen et al. 2026 (DFlash, arXiv 2602.06036); DeepSpec 2026 (DSpark, arXiv 2607.05147).
    """

    backend = "graphed"

    def __init__(
        self, shape: BlockShape, network: BlockNetwork, oracle: GraphedTransformer, target_ids: Tensor | None
    ) -> None:
        TorchBlockHead.__init__(self, shape, network, oracle, target_ids)
        self.config, self.dtype, self.device = shape.config, oracle.dtype, oracle.device
        shelf = Shelf(GraphedCache, self.config, self.dtype, self.device)
        way = way_of(self.device, self.dtype, self.config.head_size, bitwise=False, attention=oracle.attention)
        passes = Passes(self._run_pass, self._read_out, way)
        GraphedScoring.__init__(self, shelf, passes, *oracle.graph_options)
        # Blocks stay whole at the end of the context.
        self._end = self.max_context + shape.block_size
        network.rotary.hold(self._end, self.dtype, self.device)
        self._arrival = Arrival(self.config, self._take_in, self._upload, self._graphs)

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> GraphedCache:
        """Return an empty cache for ``capacity`` positions a row, with room for a block after them.

        Raises:
            ValueError: it would exceed ``max_cache_bytes`` (None: half of the free memory).
            RuntimeError: another thread is in the middle of a call.
        """
        return super().new_cache(num_rows, capacity + self.shape.block_size, max_cache_bytes)

    @torch.no_grad()
    def put(self, features: Features, cache: GraphedCache) -> None:
        """Take in features, as keys and values; see ``specdec.contracts.Head`` and ``Arrival.bring``.

        Raises:
            ValueError: a row without room, or something lies on another device.
            RuntimeError: another thread is in the middle of a call.
        """
        self._check_places(cache, {"scored": features.scored[0]})
        with self._alone():
            cache.reserve(features.rows, features.counts)
            self._arrival.bring(features, cache.memory)
            cache.commit(features.rows, None, features.counts)

    @torch.no_grad()
    def open_block(self, cache: GraphedCache, rows: IntArray, pending: Tensor, depth: int) -> DFlashBlock:
        """Return the blocks of rows ``[R]``; see ``specdec.contracts.BlockHead.open_block``.

        Raises:
            ValueError: something lies on another device.
            RuntimeError: another thread is in the middle of a call.

        Cost: see ``DFlashHead.open_block``.
        """
        self._check_places(cache, pending=pending)
        with self._alone():
            call = self._call(cache, rows, self._with_masks(pending))
            (stream,) = self._calls.answer(call, cache.memory, PassPart(hidden=(0,)), "none").hidden
        return self._block(pending, stream, depth)

    @torch.no_grad()
    def device_blocks(self, cache: GraphedCache, rows: IntArray, pending: IntArray, limits: IntArray) -> Draft:
        """Open the blocks of rows ``[R]`` and follow their likeliest ids, all in one graph.

        See ``specdec.contracts.DeviceBlockHead.device_blocks``.

        Raises:
            ValueError: the cache lies on another device.
            RuntimeError: another thread is in the middle of a call.

        Cost: one copy and one graph for up to 256 rows.
        """
        self._check_places(cache)
        with self._alone():
            call = self._call(cache, rows, self._with_masks(torch.from_numpy(pending)), limits)
            return self._calls.draft(call, cache.memory, self._run_block, further=0)

    def _with_masks(self, pending: Tensor) -> Tensor:
        """Return the ids ``[R, block_size]`` of blocks, where the pending ones lie."""
        return torch.nn.functional.pad(pending.unsqueeze(1), (0, self.shape.block_size - 1), value=self.shape.mask_id)

    def _call(self, cache: GraphedCache, rows: IntArray, ids: Tensor, limits: IntArray | None = None) -> Call:
        counts = torch.full((len(rows),), self.shape.block_size, device=HOST)
        return Call(ids, None, counts, rows, cache.reserve(rows, self.shape.block_size), 0, limits=limits)

    def _rope(self, nodes: PassNodes) -> Rope:
        return self.network.rotary.rows(nodes.slots.clamp(max=self._end - 1).flatten(), self._end, self.dtype)

    def _take_in(self, nodes: PassNodes, states: tuple[Tensor, ...]) -> None:
        """Write the keys and values that the layers make of hidden states ``[R * W, S]``, one for each oracle layer."""
        context, rope = self.network.hidden_norm(self.network.fc(torch.cat(states, dim=-1))), self._rope(nodes)
        for layer, part in enumerate(self.network.attentions):
            nodes.write(layer, *keys_and_values(part, context, rope))

    def _run_pass(self, memory: Memory, part: PassPart, packed: PassIntegers, stream: Tensor | None) -> Outputs:
        """Return the streams after the last layer, ``[R * W, H]``; see ``run_pass``."""
        reaches, around = self.network.reaches, (self.config, packed, memory, self.shape.block_size)
        nodes = {reach: BlockNodes(reach, *around) for reach in reaches}
        ways = {reach: self._calls.passes.way.attention(seen) for reach, seen in nodes.items()}
        rope, out = self._rope(nodes[reaches[0]]), self._embed(packed.tokens.flatten())
        for block, reach in zip(self.network.blocks, reaches, strict=True):
            out = block(out, rope, ways[reach])
        return (out, *(out for _ in part.hidden))

    def _run_block(self, passes: Passes, memory: Memory, size: int, packed: PassIntegers) -> tuple[Tensor]:
        """Return what ``run_chain`` returns, for blocks."""
        (out,) = passes.run(memory, PassPart(), packed, None)
        pending = packed.tokens[:, 0]
        block = self._block(pending, out.view(*packed.tokens.shape, -1), size)

        def next_logits(depth: int, tokens: Tensor | None) -> Tensor:
            return block.logits(depth, pending.unsqueeze(1) if tokens is None else tokens)[:, 0]

        return (follow(next_logits, size, packed.limits),)
