"""An EAGLE-3 head whose passes, and the chains and trees that it drafts, are calls of compiled code."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from oracles.heads.eagle3_base import Eagle3Base
from oracles.heads.eagle3_config import Eagle3Shape
from oracles.heads.eagle3_network import Eagle3Network
from oracles.native import NativeTransformer, bindings
from oracles.native.host_memory import floats
from oracles.native.native_features import NativeFeatureCache
from oracles.native.native_model import NativeModel, layer_of
from oracles.native.native_scoring import NativeScoring
from oracles.native.packing import Weights
from oracles.transformer.blocks import Norm

_ROWS_AT_ONCE = 256


class NativeEagle3Head(NativeScoring, Eagle3Base):
    """Score, and draft whole chains and trees, of tokens beside features, in one call each.

    Args:
        network: gives its weights, as they are stored; not packed.
        shape, oracle, name: see ``Eagle3Base``. Its embeddings and head are read where they lie.

    Raises:
        NativeUnavailable: the compiled code cannot be had here.

    Guarantee: a node's logits depend bitwise on the ids of its path and the oracle's hidden states only, in however
        many parts, rows, trees or threads they were scored.
    Cost: of a pass one read of its weights and of the rows' keys.
    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840).
    """

    bitwise = True

    def __init__(self, network: Eagle3Network, shape: Eagle3Shape, oracle: NativeTransformer, name: str) -> None:
        super().__init__(shape, oracle, name, network.num_written(oracle.vocab_size))
        config = replace(self.config, vocab_size=oracle.vocab_size, padded_vocab_size=None, draft_vocab_size=None)
        weights, own = Weights(), network.lm_head
        layer = layer_of(config, weights, network.layer)
        head = bindings.Linear() if own is None else weights.linear([own.cut(oracle.vocab_size)])
        self.native = NativeModel(config, weights, [layer], weights.norm(network.norm), head, config.intermediate_size)
        if own is None:
            self.native.borrow_head(oracle.native)
        else:
            self.native.write_ids(own)
        self._reading = bindings.Reading(
            norm=weights.norm(network.layer.hidden_norm),
            norms_stream=network.layer.norm_before_residual,
            norms_output=network.norm_output,
        )
        if network.embed_tokens is None:
            self._reading.host = oracle.native.address
        else:
            self.native.struct.embeddings, self.native.struct.embedding_storage = weights.table(
                network.embed_tokens.weight
            )
        self.native.struct.reading = ctypes.addressof(self._reading)
        self._combiner = _Combiner(self.native, network)

    @property
    def weight_bytes(self) -> int:
        """Memory of its own weights."""
        return self.native.weights.bytes

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> NativeFeatureCache:
        """Return an empty cache of keys, values and features; see ``specdec.contracts.Head``.

        Raises:
            ValueError: it would exceed ``max_cache_bytes`` (None: half of the free memory).

        Cost: see ``NativeFeatureCache``.
        """
        return NativeFeatureCache(self.native.config, self.native.struct, num_rows, capacity, max_cache_bytes)

    def combine(self, layers: Sequence[Tensor]) -> Tensor:
        """Return features ``[R, H]`` from the oracle's hidden states, one ``[R, D]`` for each layer."""
        return self._combiner(torch.cat([layer.to(self.device, self.dtype) for layer in layers], dim=-1))


class _Combiner:
    """Project hidden states that stand side by side to features: a model that is nothing but a head.

    Args:
        model: keeps the weights.
        network: of the head.
    """

    def __init__(self, model: NativeModel, network: Eagle3Network) -> None:
        weights, wide = model.weights, network.fc.in_features
        norm = network.input_norm
        last = bindings.Norm(None, None, 0.0, wide) if norm is None else weights.norm(norm)
        norms = [weights.norm(norm) for norm in network.fc_norm if isinstance(norm, Norm)]
        self._parts = (bindings.Norm * len(norms))(*norms)
        self._model = NativeModel(model.config, weights, [], last, weights.linear([network.fc]), 1)
        shape = self._model.struct
        shape.hidden, shape.vocabulary, self._size = wide, network.fc.out_features, network.fc.out_features
        shape.query_heads, shape.kv_heads, shape.head_size = 1, 1, 1
        shape.num_parts, shape.parts = len(self._parts), ctypes.addressof(self._parts)

    def __call__(self, states: Tensor) -> Tensor:
        """Return features ``[R, H]`` of hidden states ``[R, X]``. Cost: one read of the weights for every 256 rows."""
        features = floats(len(states), self._size)
        if len(states):
            for given, found in zip(*(torch.split(x, _ROWS_AT_ONCE) for x in (states, features)), strict=True):
                stream, size = given.contiguous(), len(given)
                self._model.run(None, batch=size, width=1, layers=(0, 0), want="all", stream=stream, found=(found,))
        return features
