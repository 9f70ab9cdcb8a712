"""Block drafters for draft sources: one pass computes the laws of a whole block (DFlash, DSpark)."""

from abc import ABC

import torch
from torch import Tensor

from oracles.heads.block_network import BlockNetwork, BlockShape
from oracles.transformer.blocks import pack_parts
from oracles.transformer.draft_vocabulary import spread
from oracles.transformer.linear import at_least_float32
from specdec.cache import PagedKVCache
from specdec.contracts import Features, HostOracle, IntArray


class BlockBase(ABC):
    """What block heads have in common, whatever computes their passes.

    Args:
        shape: of the network.
        network: in the oracle's dtype.
        oracle: lends the tables that the network lacks.
        target_ids: ``[columns]`` the id that each column is for; None: column i is for id i.

    Attributes:
        oracle, network: the same.
        layers: see ``BlockShape``.
        num_laws: the most tokens that a block gives.
        max_context: number of positions that it can serve.
        has_confidence: whether its blocks give confidences.
    """

    drafter = "block_drafter"
    backend: str

    def __init__(self, shape: BlockShape, network: BlockNetwork, oracle: HostOracle, target_ids: Tensor | None) -> None:
        self.shape, self.network, self.oracle, self.vocab_size = shape, network, oracle, oracle.vocab_size
        self.target_ids = target_ids
        self.layers, self.max_context = shape.layers, shape.config.max_context
        self.num_laws = shape.block_size - (not shape.from_anchor)
        self.has_confidence = shape.confidence

    def __repr__(self) -> str:
        kind, rank = self.shape.markov, self.shape.markov_rank
        markov = "" if kind is None else f", {kind} Markov head of rank {rank}"
        return f"<block head: {self.num_laws} tokens a block{markov}, reads {self.shape.layers_said}, {self.backend}>"

    @property
    def first_law(self) -> int:
        """The first place of a block that has a law."""
        return self.shape.block_size - self.num_laws

    def spread(self, columns: Tensor) -> Tensor:
        """Return logits ``[R, V]`` of all ids from those of the columns."""
        return spread(at_least_float32(columns), self.target_ids, self.vocab_size)


class TorchBlockHead(BlockBase):
    """Compute the parts after the trunk of a block drafter as torch operations, whatever runs the trunk.

    Args:
        shape: of the network.
        network: on the oracle's device and in its dtype; it is packed here.
        oracle: lends its embeddings and its read-out if the network has none.
        target_ids: see ``BlockBase``.
    """

    chains = False

    def __init__(self, shape: BlockShape, network: BlockNetwork, oracle: HostOracle, target_ids: Tensor | None) -> None:
        super().__init__(shape, network, oracle, target_ids)
        self._embed = oracle.embed if network.embed_tokens is None else network.embed_tokens
        # Before the norm is packed.
        self._read_out = oracle.read_out_after(network.norm) if network.lm_head is None else network.own_read_out
        pack_parts(network)

    def _block(self, pending: Tensor, stream: Tensor, depth: int) -> "DFlashBlock":
        """Return the laws from streams ``[R, W, H]`` after the last layer."""
        read = stream[:, self.first_law : self.first_law + depth]
        columns = self._read_out(read.flatten(0, 1)).view(*read.shape[:2], -1)
        return DFlashBlock(self, pending, self.network.normalise(stream), columns)


class DFlashHead(TorchBlockHead):
    """Draft blocks from a target's hidden states: a ``specdec.contracts.BlockHead``.

    Args:
        shape, network, oracle, target_ids: see ``TorchBlockHead``.

    Guarantee: keys and values of a position are made once, from the target's states alone, so rollback only sets a
        length. A row's laws do not depend on how many of them are wanted.
    Cost: one pass of ``block_size`` tokens for each row, however many tokens of the block are drafted.
    Source: Chen et al. 2026 (DFlash, arXiv 2602.06036); DeepSpec 2026 (DSpark, arXiv 2607.05147).
    """

    backend = "eager"

    def __init__(self, shape: BlockShape, network: BlockNetwork, oracle: HostOracle, target_ids: Tensor | None) -> None:
        super().__init__(shape, network, oracle, target_ids)
        self._mask = self._embed(torch.tensor([shape.mask_id], device=oracle.device))

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> PagedKVCache:
        """Return an empty cache for ``capacity`` positions a row, with room for a block after them.

        Raises:
            ValueError: it would exceed ``max_cache_bytes`` (None: half of the free memory).
        """
        return self.network.new_cache(num_rows, capacity + self.shape.block_size, max_cache_bytes)

    def put(self, features: Features, cache: PagedKVCache) -> None:
        """Take in features; see ``specdec.contracts.Head``. Cost: see ``BlockNetwork.remember``."""
        self.network.remember(cache, features.rows, features.counts, features.layers)

    @torch.no_grad()
    def open_block(self, cache: PagedKVCache, rows: IntArray, pending: Tensor, depth: int) -> "DFlashBlock":
        """Return the blocks of rows ``[R]``; see ``specdec.contracts.BlockHead.open_block``.

        Cost: one pass of the trunk over ``block_size`` tokens of each row, and one read of the head for ``depth`` of
            them.
        """
        masks = self._mask.expand(len(rows), self.shape.block_size - 1, -1)
        stream = self.network(cache, rows, torch.cat([self._embed(pending).unsqueeze(1), masks], dim=1))
        return self._block(pending, stream, depth)


class DFlashBlock:
    """The laws of blocks: a ``specdec.contracts.BlockLaws``.

    Without a Markov head, laws do not depend on what was drafted: they are independent given the context.

    Args:
        head: the head that made the blocks.
        pending: ``[R]``.
        normed: ``[R, W, H]`` the trunk's normed stream.
        columns: ``[R, depth, columns]`` logits before the Markov head.
    """

    def __init__(self, head: BlockBase, pending: Tensor, normed: Tensor, columns: Tensor) -> None:
        self._head, self._normed, self._columns = head, normed, columns
        self._first = head.first_law
        self._states: Tensor | None = None
        markov = head.network.markov_head
        if markov is not None:
            state = markov.first_state(len(pending))
            if self._first:
                # The pending token's place has no law, but the state passes through it.
                state = markov(pending, normed[:, 0], state)[1]
            self._states = state.unsqueeze(1)

    @torch.no_grad()
    def logits(self, depth: int, previous: Tensor, above: Tensor | None = None) -> Tensor:
        """Return logits ``[R, S, V]`` of the tokens at a depth; see ``specdec.contracts.BlockLaws``."""
        rows, size = previous.shape
        columns = self._columns[:, depth].unsqueeze(1).expand(-1, size, -1).flatten(0, 1)
        markov = self._head.network.markov_head
        if markov is not None:
            assert self._states is not None
            above = torch.zeros_like(previous) if above is None else above
            state = self._states.gather(1, above.unsqueeze(-1).expand(-1, -1, self._states.shape[-1]))
            bias, state = markov(previous.flatten(), self._at(depth, size), state.flatten(0, 1))
            columns, self._states = columns + bias, state.view(rows, size, -1)
        return self._head.spread(columns).view(rows, size, -1)

    @torch.no_grad()
    def confidence(self, depth: int, previous: Tensor) -> Tensor:
        """Return ``[R, S]`` float64 confidences in the tokens at a depth; see ``specdec.contracts.BlockLaws``."""
        network = self._head.network
        assert network.confidence_head is not None
        read = self._at(depth, previous.shape[1])
        if self._head.shape.confidence_with_markov:
            assert network.markov_head is not None
            read = torch.cat([read, network.markov_head.markov_w1(previous.flatten())], dim=-1)
        chance: Tensor = network.confidence_head(read)
        return chance.view(previous.shape)

    def _at(self, depth: int, size: int) -> Tensor:
        """Return ``[R * size, H]`` the normed stream of the place from which the law at a depth is read."""
        return self._normed[:, self._first + depth].unsqueeze(1).expand(-1, size, -1).flatten(0, 1)
