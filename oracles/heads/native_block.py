"""A block drafter whose passes and whose chains along blocks are calls of compiled code."""

import ctypes
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from oracles.heads.block_head import BlockBase, DFlashBlock
from oracles.heads.block_network import BlockNetwork, BlockShape
from oracles.native import NativeTransformer, bindings
from oracles.native.chains import follow
from oracles.native.host_memory import floats, to_bytes
from oracles.native.native_features import NativeContextCache
from oracles.native.native_model import NativeModel
from oracles.native.packing import reach_of
from oracles.transformer.linear import Linear
from specdec.contracts import Adjustments, ChainWatch, Draws, Features, Float32Array, IntArray
from specdec.transfers import on_host


class NativeBlockHead(BlockBase):
    """Compute the laws of blocks, and draw along the blocks, in one call.

    Args:
        shape: of the network.
        network: gives up its weights, as they are stored; not packed.
        oracle: its embeddings and head are read in place if the network has none.
        target_ids: see ``BlockBase``.

    Attributes:
        native: the weights.
        chains: whether compiled code draws along blocks: if there is no Markov head, or one that reads ids alone
            ("vanilla"). Other heads go from depth to depth in torch, after the one pass.

    Raises:
        NativeUnavailable: the compiled code is not available here.

    Guarantee: a row's laws depend bitwise on its ids and the oracle's hidden states only, whatever the batch, parts or
        threads.
    Cost: a pass reads its weights and the rows' keys once; each drafted token reads the Markov head's weights once.
    Source: Chen et al. 2026 (DFlash, arXiv 2602.06036); DeepSpec 2026 (DSpark, arXiv 2607.05147).
    """

    backend, adjusts = "native", True

    def __init__(
        self, shape: BlockShape, network: BlockNetwork, oracle: NativeTransformer, target_ids: Tensor | None
    ) -> None:
        super().__init__(shape, network, oracle, target_ids)
        self.native = _model_of(shape, network, oracle, target_ids)
        weights = self.native.weights
        self._combiner, self._norm = self.native.projection(network.fc), weights.norm(network.hidden_norm)
        self._host = oracle.native if network.embed_tokens is None else self.native
        self._markov: NativeModel | None = None
        if network.markov_head is not None:
            # A table of ids, and a head from its rows to what is added to logits.
            assert isinstance(network.markov_head.markov_w2, Linear)
            self._markov = self.native.projection(network.markov_head.markov_w2)
            self._markov.read_table(network.markov_head.markov_w1)
            network.markov_head.markov_w2 = _Rows(self._markov)
        network.shed()
        self.chains = shape.markov in (None, "vanilla")

    @property
    def weight_bytes(self) -> int:
        """Memory of its own weights in compiled code."""
        return self.native.weights.bytes

    @property
    def weight_type(self) -> str:
        """How the weights of its layers are stored."""
        return self._combiner.weight_type

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> NativeContextCache:
        """Return an empty cache for ``capacity`` positions a row, with room for a block after them.

        Raises:
            ValueError: it would exceed ``max_cache_bytes`` (None: half of the free memory).
        """
        head, slots = (self.native, self._combiner, self._norm), capacity + self.shape.block_size
        return NativeContextCache(*head, num_rows, slots, max_cache_bytes)

    def put(self, features: Features, cache: NativeContextCache) -> None:
        """Take in features; see ``NativeContextCache.arrive``."""
        cache.arrive(features)

    @torch.no_grad()
    def open_block(self, cache: NativeContextCache, rows: IntArray, pending: Tensor, depth: int) -> DFlashBlock:
        """Return the blocks of rows ``[R]``; see ``specdec.contracts.BlockHead.open_block``.

        Cost: one call: a pass over ``block_size`` tokens of each row, and a read of the head for ``depth`` of them.
        """
        stream = floats(len(rows), self.shape.block_size, self.shape.config.hidden_size)
        logits = floats(len(rows), depth, self.vocab_size)
        blocks = self._blocks(on_host(pending), depth)
        places = ctypes.addressof(blocks), stream.data_ptr(), logits.data_ptr()
        self.native.draft("specdec_blocks", cache, rows, self._ends(cache, rows), 0, places)
        columns = logits if self.target_ids is None else logits[..., self.target_ids]
        return DFlashBlock(self, pending, self.network.normalise(stream), columns)

    def follow_blocks(
        self,
        cache: NativeContextCache,
        rows: IntArray,
        pending: IntArray,
        limits: IntArray,
        watch: ChainWatch | None,
        draws: Draws | None,
        adjustments: Adjustments | None,
    ) -> tuple[IntArray, Float32Array, Float32Array | None]:
        """Draw along the blocks of rows ``[B]`` in one call; see ``specdec.contracts.ChainingBlockHead.follow_blocks``.

        Cost: the pass of ``open_block``; a law and a draw of O(V) for each token.
        """
        ends = self._ends(cache, rows)
        blocks = self._blocks(pending, max(limits.tolist()))
        return follow(self.native, cache, "specdec_block_chains", blocks, ends, rows, limits, watch, draws, adjustments)

    def _ends(self, cache: NativeContextCache, rows: IntArray) -> IntArray:
        """Return ``[B]`` how many positions a call for the blocks of some rows reaches, with other rows' arrivals."""
        ends: IntArray = np.maximum(cache.lengths[rows] + self.shape.block_size, cache.lengths.max())
        return ends

    def _blocks(self, pending: IntArray, depth: int) -> bindings.Blocks:
        """Return the structure that describes blocks to compiled code.

        Raises:
            ValueError: more laws are asked for than a block has.
        """
        if depth > self.num_laws:
            raise ValueError(f"{depth} laws are asked for, and a block of this head has {self.num_laws}")
        return bindings.Blocks(
            host=self._host.address,
            markov=None if self._markov is None else self._markov.address,
            pending=to_bytes(pending),
            mask=self.shape.mask_id,
            size=self.shape.block_size,
            first=self.first_law,
            depth=depth,
        )


class _Rows(nn.Module):
    """Project rows as compiled code does, so that a bias has the same bits wherever it is added.

    Args:
        model: only a head.
    """

    def __init__(self, model: NativeModel) -> None:
        super().__init__()
        self._model = model

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``[R, columns]`` of rows ``[R, rank]``."""
        return self._model.read_out(0, rows)


def _model_of(
    shape: BlockShape, network: BlockNetwork, oracle: NativeTransformer, target_ids: Tensor | None
) -> NativeModel:
    """Return the layers and the read-out of a network; the last block of a context extends beyond it."""
    config = replace(
        shape.config,
        vocab_size=oracle.vocab_size,
        padded_vocab_size=None,
        draft_vocab_size=None,
        max_context=shape.config.max_context + shape.block_size,
    )
    # The mask may be one of the table's padding rows.
    around = network.norm, network.lm_head, network.embed_tokens, oracle.native
    model = NativeModel.of_parts(config, [*network.blocks], *around)
    model.set_reaches([reach_of(reach.window, reach.ahead) for reach in network.reaches])
    if network.lm_head is not None and target_ids is not None:
        model.write_only(target_ids)
    return model
