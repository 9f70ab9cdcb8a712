"""An EAGLE-3 head, which drafts token by token: a node is a token and the feature of the position before it."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from oracles.heads.eagle3_base import Eagle3Base
from oracles.heads.eagle3_config import Eagle3Shape
from oracles.heads.eagle3_network import Eagle3Network
from oracles.transformer.attention import CachedAttention, cache_shape
from oracles.transformer.linear import at_least_float32, linear_layers
from oracles.transformer.pass_parts import check_call, wanted_logits
from specdec.cache import FeatureCache
from specdec.contracts import Features, HostOracle, IntArray, Scores, Tree, Want, is_chain
from specdec.transfers import on_host


class Eagle3Head(Eagle3Base):
    """Score trees of tokens beside features: of the oracle's hidden states where they are known, else its own.

    It fulfils ``specdec.contracts.SteppingHead``. Positions are not bounded by the context that its config declares:
    rotary angles go on, and a head that was trained on shorter texts drafts worse beyond them.

    Args:
        network: with its weights; it is packed.
        shape, oracle, name: see ``Eagle3Base``.

    Guarantee: a node's logits follow from the ids of its path and the features that they were read beside, in however
        many passes.
    Cost: of a pass one read of its weights and of the rows' keys; it reads embeddings and head of the oracle where it
        has none of its own.
    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840).
    """

    backend, bitwise, chains = "eager", False, False

    def __init__(self, network: Eagle3Network, shape: Eagle3Shape, oracle: HostOracle, name: str) -> None:
        super().__init__(shape, oracle, name, network.num_written(oracle.vocab_size))
        # What another backend reads of the norm are the plain weights.
        borrowed = None if network.lm_head is not None else oracle.read_out_after(network.norm)
        self._network = network.pack()
        self._read: Callable[[Tensor], Tensor] = self._own_logits if borrowed is None else borrowed

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self._network.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and cache."""
        return self._network.norm.weight.dtype

    @property
    def weight_type(self) -> str:
        """The dtype of its weights."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def weight_bytes(self) -> int:
        """Memory of its own weights."""
        packed = sum(layer.extra_bytes for _, layer in linear_layers(self._network))
        return packed + sum(parameter.nbytes for parameter in self._network.parameters())

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> FeatureCache:
        """Return an empty cache of keys, values and features; see ``specdec.contracts.Head``.

        Raises:
            ValueError: it would exceed ``max_cache_bytes`` (None: half of the free memory).

        Cost: 2 * KV heads * head size + hidden size numbers a slot.
        """
        leading, trailing, slots = cache_shape(self.config, capacity)
        sizes = self.config.hidden_size, max_cache_bytes
        return FeatureCache(leading, trailing, num_rows, slots, self.dtype, self.device, *sizes)

    @torch.no_grad()
    def put(self, features: Features, cache: FeatureCache) -> None:
        """Take in what the oracle's layers gave at positions, projected to one feature each."""
        batch, width = features.layers[0].shape[:2]
        flat = tuple(layer.to(self.device, self.dtype).flatten(0, 1) for layer in features.layers)
        size = self.config.hidden_size
        combined = self._network.combine(flat) if len(flat[0]) else flat[0].new_zeros(0, size)
        cache.put(features.rows, features.starts, features.counts, combined.view(batch, width, size))

    @torch.no_grad()
    def score(
        self,
        tokens: Tensor,
        parents: Tensor | None,
        num_nodes: Tensor,
        cache: FeatureCache,
        rows: IntArray,
        want: Want = "all",
        hidden: Sequence[int] = (),
        first: int = 0,
    ) -> Scores:
        """Score trees of nodes in one pass, as ``specdec.contracts.Oracle.score`` spells out.

        A node reads the feature of the position after its parent's slot, a root that of the first slot without keys. It
        leaves its own after its slot for its children, which a later pass scores, unless the oracle's is known there.
        ``hidden`` (0,) gives the streams after the layer.

        Raises:
            ValueError: an unknown ``want`` or layer, a row without room, a pending token beyond ``max_context``;
                on the CPU, a node whose parent is of the same pass and has no known feature after it.
        """
        check_call(self.config, int(cache.lengths[rows].max()), want, hidden)
        tree = Tree(tokens, None if is_chain(parents) else parents, num_nodes)
        _check_order(tree, cache, rows, first)
        attend = CachedAttention(self.config, tree, cache, rows, first)
        fed, at = tokens[:, first:], torch.from_numpy(rows).to(self.device)
        after = torch.arange(first, tree.size, device=self.device)
        above = after if tree.parents is None else tree.parents[:, first:] + 1
        feature = cache.read(at, attend.start + above).flatten(0, 1)
        # Padding nodes may stand beyond the context: their scores mean nothing, but must not fail.
        positions = attend.positions.clamp(max=self.max_context - 1).flatten()
        rope = self._network.rotary.rows(positions, min(attend.span, self.max_context), self.dtype)
        own, ids = self._network.embed_tokens, fed.flatten()
        embedded = self.oracle.embed(ids).to(self.device, self.dtype) if own is None else own(ids)
        stream = self._network.layer(embedded, feature, rope, attend)
        guess = self._network.norm(stream) if self._network.norm_output else stream
        cache.guess(rows, at, attend.start + after + 1, guess.view(*fed.shape, -1))
        return Scores(
            wanted_logits(self._read, stream, num_nodes - first, want), (stream.view(*fed.shape, -1),) * len(hidden)
        )

    def _own_logits(self, stream: Tensor) -> Tensor:
        """Return logits ``[R, V]`` from streams ``[R, H]``, padding cut off."""
        assert self._network.lm_head is not None
        return at_least_float32(self._network.lm_head(self._network.norm(stream))[..., : self.vocab_size])


def _check_order(tree: Tree, cache: FeatureCache, rows: IntArray, first: int) -> None:
    """Raise ValueError if a node needs what its parent leaves in this very pass; tensors of a device are not read."""
    if tree.size == first + 1 or not tree.tokens.is_cpu:
        return
    above = on_host(tree.above)
    is_real = np.arange(1, tree.size) < on_host(tree.num_nodes)[:, None]
    is_guess = cache.lengths[rows][:, None] + above + 1 >= cache.known[rows][:, None]
    if (is_real & is_guess & (above >= first)).any():
        raise ValueError(
            "a node hangs on one of the same pass, whose feature is not there yet: score a chain token by token, and a "
            "tree level by level"
        )
