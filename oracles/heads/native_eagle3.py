"""An EAGLE-3 head whose passes, drafted chains and drafted trees are calls of compiled code."""

import ctypes
from dataclasses import replace

from oracles.heads.eagle3_config import Eagle3Shape
from oracles.heads.eagle3_head import Eagle3Base
from oracles.heads.eagle3_network import Eagle3Network
from oracles.native import NativeTransformer, bindings
from oracles.native.native_features import NativeFeatureCache
from oracles.native.native_model import NativeModel
from oracles.native.native_scoring import NativeScoring
from oracles.transformer.blocks import Norm
from specdec.contracts import Features


class NativeEagle3Head(NativeScoring, Eagle3Base):
    """Score tokens with features, and draft whole chains and trees, in one call each.

    Args:
        network: gives its weights, as they are stored; not packed.
        shape, oracle, name: see ``Eagle3Base``. The oracle's embeddings and head are read in place.

    Raises:
        NativeUnavailable: the compiled code is not available here.

    Guarantee: a node's logits depend bitwise on the ids of its path and the oracle's hidden states only, whatever the
        parts, rows, trees or threads in which they were scored.
    Cost: a pass reads its weights and the rows' keys once.
    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840).
    """

    bitwise = True

    def __init__(self, network: Eagle3Network, shape: Eagle3Shape, oracle: NativeTransformer, name: str) -> None:
        super().__init__(shape, oracle, name, network.num_written(oracle.vocab_size))
        config = replace(self.config, vocab_size=oracle.vocab_size, padded_vocab_size=None, draft_vocab_size=None)
        own = None if network.lm_head is None else network.lm_head.cut(oracle.vocab_size)
        around = network.norm, own, network.embed_tokens, oracle.native
        self.native = NativeModel.of_parts(config, [network.layer], *around)
        self._reading = bindings.Reading(
            norm=self.native.weights.norm(network.layer.hidden_norm),
            norms_stream=network.layer.norm_before_residual,
            norms_output=network.norm_output,
        )
        if network.embed_tokens is None:
            self._reading.host = oracle.native.address
        self.native.struct.reading = ctypes.addressof(self._reading)
        norms = [norm for norm in network.fc_norm if isinstance(norm, Norm)]
        self._combiner = self.native.projection(network.fc, network.input_norm, norms)

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> NativeFeatureCache:
        """Return an empty cache of keys, values and features; see ``specdec.contracts.Head``.

        Raises:
            ValueError: it would exceed ``max_cache_bytes`` (None: half of the free memory).

        Cost: see ``NativeFeatureCache``.
        """
        return NativeFeatureCache(self.native, self._combiner, num_rows, capacity, max_cache_bytes)

    def put(self, features: Features, cache: NativeFeatureCache) -> None:
        """Take in the outputs of the oracle's layers at positions; see ``NativeFeatureCache.arrive``."""
        cache.arrive(features)
