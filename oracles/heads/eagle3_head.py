"""An EAGLE-3 head, which drafts token by token: a node is a token and the feature of the position before it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from oracles.heads.aux_layers import AuxLayers
from oracles.heads.eagle3_config import Eagle3Shape
from oracles.heads.eagle3_network import Eagle3Network
from oracles.transformer.attention import Attend, CachedAttention, cache_shape
from oracles.transformer.linear import at_least_float32, weight_bytes_of
from oracles.transformer.pass_parts import check_call, wanted_logits
from specdec.cache import FeatureCache, FeatureSlots
from specdec.contracts import Features, HostOracle, IntArray, OracleDefaults, Scores, Tree, Want, is_chain
from specdec.transfers import on_host


class Eagle3Base(OracleDefaults, ABC):
    """What EAGLE-3 heads have in common, whatever computes their passes: their description.

    Args:
        shape: of its network.
        oracle: lends embedding and head if the network has none.
        name: of the format, for its description.
        num_written: number of ids that it writes.

    Attributes:
        oracle, name, num_written: the same.
        aux_layers: the layers of the oracle that it reads, and who says so.
        config: of its layer; the context is the oracle's.
    """

    drafter = "eagle3"
    eos_ids: tuple[int, ...] = ()
    backend: str

    def __init__(self, shape: Eagle3Shape, oracle: HostOracle, name: str, num_written: int) -> None:
        # The context is the oracle's, also in the checks of a call.
        self.config = replace(shape.config, max_context=oracle.max_context)
        self.name, self.oracle, self.aux_layers, self.num_written = name, oracle, shape.layers, num_written

    @property
    @abstractmethod
    def weight_type(self) -> str:
        """How its weights are stored."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Memory of its own weights."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name}, reads {self.aux_layers}, writes {self.num_written:,} of "
            f"{self.vocab_size:,} ids, {self.weight_type} weights of {self.weight_bytes / 1e6:,.1f} MB, {self.backend})"
        )

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose outputs it reads."""
        return self.aux_layers.outputs

    def reading(self, aux_layers: AuxLayers) -> Self:
        """Return the same head, with shared weights, reading other layers, the same number of them."""
        other = copy(self)
        other.aux_layers = aux_layers
        return other

    @property
    def vocab_size(self) -> int:
        """True number of ids, the oracle's; logits have this width."""
        return self.oracle.vocab_size

    @property
    def tokenizer(self) -> object:
        """The oracle's."""
        return self.oracle.tokenizer

    @property
    def max_context(self) -> int:
        """Positions, the same number as the oracle has."""
        return self.oracle.max_context


class TorchEagle3Head(Eagle3Base):
    """Compute a pass of an EAGLE-3 head; subclasses decide where its nodes lie.

    Args:
        network: with its weights; it is packed.
        shape, oracle, name: see ``Eagle3Base``.

    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840).
    """

    bitwise, chains = False, False

    def __init__(self, network: Eagle3Network, shape: Eagle3Shape, oracle: HostOracle, name: str) -> None:
        super().__init__(shape, oracle, name, network.num_written(oracle.vocab_size))
        # Another backend reads the plain weights of the norm.
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
        return weight_bytes_of(self._network)

    def _stream(self, ids: Tensor, positions: Tensor, end: int, feature: Tensor, attend: Attend) -> Tensor:
        """Return the streams ``[N, H]`` of nodes after the layer.

        Args:
            ids, positions: ``[N]``; positions of padding beyond the context are taken as its last one.
            end: all other positions are below it.
            feature: ``[N, H]`` that the nodes read.
            attend: attends, and keeps their keys.
        """
        own, end = self._network.embed_tokens, min(end, self.max_context)
        rope = self._network.rotary.rows(positions.clamp(max=self.max_context - 1), end, self.dtype)
        embedded = self.oracle.embed(ids).to(self.device, self.dtype) if own is None else own(ids)
        stream: Tensor = self._network.layer(embedded, feature, rope, attend)
        return stream

    def _guess(self, stream: Tensor) -> Tensor:
        """Return the features ``[N, H]`` that nodes leave for their children."""
        guess: Tensor = self._network.norm(stream) if self._network.norm_output else stream
        return guess

    def _own_logits(self, stream: Tensor) -> Tensor:
        """Return logits ``[R, V]`` from streams ``[R, H]``, padding cut off."""
        assert self._network.lm_head is not None
        return at_least_float32(self._network.lm_head(self._network.norm(stream))[..., : self.vocab_size])


class Eagle3Head(TorchEagle3Head):
    """Score trees of tokens with features: from the oracle's hidden states if they are known, else the head's own.

    It fulfils ``specdec.contracts.SteppingHead``. Positions are not bounded by the context that its config declares:
    rotary angles continue, and a head that was trained on shorter texts drafts worse beyond their length.

    Args:
        network: with its weights; it is packed.
        shape, oracle, name: see ``Eagle3Base``.

    Guarantee: a node's logits depend on the ids of its path and the features read with them, whatever the number of
        passes.
    Cost: a pass reads its weights and the rows' keys once; it reads the oracle's embeddings and head if it has none of
        its own.
    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840).
    """

    backend = "eager"

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> FeatureCache:
        """Return an empty cache of keys, values and features; see ``specdec.contracts.Head``.

        Raises:
            ValueError: it would exceed ``max_cache_bytes`` (None: half of the free memory).

        Cost: 2 * KV heads * head size + hidden size numbers for each slot.
        """
        leading, trailing, slots = cache_shape(self.config, capacity)
        sizes = self.config.hidden_size, max_cache_bytes
        return FeatureCache(leading, trailing, num_rows, slots, self.dtype, self.device, *sizes)

    @torch.no_grad()
    def put(self, features: Features, cache: FeatureCache) -> None:
        """Take in the outputs of the oracle's layers at positions, projected to one feature each."""
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
        """Score trees of nodes ``[B, M]`` in one pass; see ``specdec.contracts.Oracle.score``.

        A node reads the feature of the position after its parent's slot, a root that of the first slot without keys. It
        leaves its own after its slot for its children, which a later pass scores, unless the oracle's is known there.
        ``hidden`` (0,) gives the streams after the layer.

        Raises:
            ValueError: an unknown ``want`` or layer, a row without room, a pending token beyond ``max_context``;
                on the CPU, a node whose parent is of the same pass and has no known feature after it.
        """
        check_call(int(cache.lengths[rows].max()), self.max_context, want, hidden, num_layers=1)
        tree = Tree(tokens, None if is_chain(parents) else parents, num_nodes)
        check_order(tree, cache, rows, first)
        attend = CachedAttention(self.config, tree, cache, rows, first)
        fed, at = tokens[:, first:], torch.from_numpy(rows).to(self.device)
        after = torch.arange(first, tree.size, device=self.device)
        above = after if tree.parents is None else tree.parents[:, first:] + 1
        feature = cache.read(at, attend.start + above).flatten(0, 1)
        # Padding nodes may stand beyond the context: their scores mean nothing, but must not fail.
        stream = self._stream(fed.flatten(), attend.positions.flatten(), attend.span, feature, attend)
        cache.guess(rows, at, attend.start + after + 1, self._guess(stream).view(*fed.shape, -1))
        return Scores(
            wanted_logits(self._read, stream, num_nodes - first, want), (stream.view(*fed.shape, -1),) * len(hidden)
        )


def check_order(tree: Tree, cache: FeatureSlots, rows: IntArray, first: int) -> None:
    """Raise ValueError if a node needs what its parent leaves in the same pass; device tensors are not read.

    Args:
        tree: of ``[B, M]`` nodes.
        cache: says of which positions features are known.
        rows: ``[B]`` of the cache.
        first: how many of every row's nodes were scored by calls before.
    """
    given = tree.tokens, tree.num_nodes, tree.parents
    if tree.size == first + 1 or not all(part is None or part.is_cpu for part in given):
        return
    above = on_host(tree.above)
    is_real = np.arange(1, tree.size) < on_host(tree.num_nodes)[:, None]
    is_guess = cache.lengths[rows][:, None] + above + 1 >= cache.known[rows][:, None]
    if (is_real & is_guess & (above >= first)).any():
        raise ValueError(
            "a node hangs on one of the same pass, whose feature is not there yet: score a chain token by token, and a "
            "tree level by level"
        )
