"""Medusa's heads: each predicts the law of a token further ahead from the last hidden state alone."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oracles.heads.appending import append_positions
from oracles.transformer.draft_vocabulary import spread
from oracles.transformer.linear import Linear, at_least_float32
from specdec.cache import PagedKVCache
from specdec.contracts import Features, IntArray, LayeredOracle
from specdec.transfers import on_device


@dataclass(frozen=True)
class MedusaShape:
    """What a file says about Medusa's heads.

    Attributes:
        num_heads: number of tokens that they draft.
        num_layers: residual blocks of each.
        hidden_size: of the oracle.
        columns: number of ids that have logits.
        bias: whether residual blocks have one.
        shared_head: one read-out serves all heads.
    """

    num_heads: int
    num_layers: int
    hidden_size: int
    columns: int
    bias: bool = True
    shared_head: bool = False


class MedusaNetwork(nn.Module):
    """Residual blocks ``x + SiLU(W x)`` and a read-out for each head.

    Args:
        shape: numbers and sizes of them.

    Source: Cai et al. 2024 (Medusa, arXiv 2401.10774), section 2.1.
    """

    def __init__(self, shape: MedusaShape) -> None:
        super().__init__()
        size = shape.hidden_size
        self.blocks = nn.ModuleList(
            nn.ModuleList(Linear(size, size, shape.bias, "silu") for _ in range(shape.num_layers))
            for _ in range(shape.num_heads)
        )
        heads = 1 if shape.shared_head else shape.num_heads
        self.lm_heads = nn.ModuleList(Linear(size, shape.columns) for _ in range(heads))

    def forward(self, head: int, normed: Tensor) -> Tensor:
        """Return logits ``[R, columns]`` of a head, numbered from 0, from normed streams ``[R, H]``."""
        layers: Any = self.blocks[head]
        for layer in layers:
            normed = layer(normed, normed)
        out: Tensor = self.lm_heads[head if len(self.lm_heads) > 1 else 0](normed)
        return out


class MedusaHead:
    """Draft from the hidden state of the last position that the oracle has scored: a ``specdec.contracts.BlockHead``.

    That is the position before the pending token, which the oracle's own head drew from this state; head j, numbered
    from 0, is for the token j + 1 places after the pending one. All laws are known at once, and no law depends on
    another drafted token.

    Args:
        shape: of the network.
        network: on the oracle's device and in its dtype.
        oracle: the state passes its last norm first.
        target_ids: ``[columns]`` the id that each column is for; None: column i is for id i.

    Attributes:
        oracle, target_ids: the same.
        layers: the one layer.
        num_laws: number of tokens that the heads draft.

    Cost: a step reads the weights of one head for each token that is wanted.
    Source: Cai et al. 2024 (Medusa, arXiv 2401.10774).
    """

    drafter, has_confidence, chains = "medusa", False, False

    def __init__(
        self, shape: MedusaShape, network: MedusaNetwork, oracle: LayeredOracle, target_ids: Tensor | None
    ) -> None:
        self.shape, self.network, self.num_laws = shape, network, shape.num_heads
        self.layers = (oracle.num_layers - 1,)
        self.vocab_size, self.max_context = oracle.vocab_size, oracle.max_context
        self.oracle, self.target_ids = oracle, target_ids

    def __repr__(self) -> str:
        return f"<Medusa: {self.num_laws} heads, read the output of layer {self.layers[0]}, normed>"

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> PagedKVCache:
        """Return an empty cache: it holds the hidden states of all positions, so that a rollback finds an older one.

        Raises:
            ValueError: it would exceed ``max_cache_bytes`` (None: half of the free memory).
        """
        size = (self.shape.hidden_size,)
        return PagedKVCache.alone((), size, num_rows, capacity, self.oracle.dtype, self.oracle.device, max_cache_bytes)

    @torch.no_grad()
    def put(self, features: Features, cache: PagedKVCache) -> None:
        """Take in features; see ``specdec.contracts.Head``. Cost: a copy of real positions."""

        def write(line: Tensor, slot: Tensor, at: Tensor, column: Tensor) -> None:
            cache.payload[line] = features.layers[0][at, column].to(cache.payload.dtype)

        append_positions(cache, features.rows, features.counts, write)

    @torch.no_grad()
    def open_block(self, cache: PagedKVCache, rows: IntArray, pending: Tensor, depth: int) -> "MedusaLaws":
        """Return the laws of rows ``[R]``; see ``specdec.contracts.BlockHead.open_block``."""
        last = on_device(cache.lines(rows, cache.lengths[rows] - 1), cache.payload.device)
        return MedusaLaws(self, self.oracle.last_norm(cache.payload[last]))

    @torch.no_grad()
    def logits(self, head: int, normed: Tensor) -> Tensor:
        """Return logits ``[R, V]`` of a head from normed states ``[R, H]``; minus infinity for ids without a column."""
        return spread(at_least_float32(self.network(head, normed)), self.target_ids, self.vocab_size)


class MedusaLaws:
    """The laws of one step: a ``specdec.contracts.BlockLaws``. All nodes of a depth share one law.

    Args:
        head: the heads.
        normed: ``[R, H]`` the states that the laws are computed from.
    """

    def __init__(self, head: MedusaHead, normed: Tensor) -> None:
        self._head, self._normed = head, normed

    def logits(self, depth: int, previous: Tensor, above: Tensor | None = None) -> Tensor:
        """Return logits ``[R, S, V]`` of the tokens at a depth, the same for every node."""
        return self._head.logits(depth, self._normed).unsqueeze(1).expand(-1, previous.shape[1], -1)

    def confidence(self, depth: int, previous: Tensor) -> Tensor:
        """Raise TypeError: there is no confidence head; see ``specdec.contracts.BlockLaws.confidence``."""
        raise TypeError("Medusa's heads tell no confidences: read them only if has_confidence")
