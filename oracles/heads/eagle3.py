"""An EAGLE-3 head, which drafts token by token: a node is a token and the feature of the position before it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from oracles.heads.torch_eagle3 import TorchEagle3Head, check_order
from oracles.transformer.attention import CachedAttention, cache_shape
from oracles.transformer.pass_parts import check_call, wanted_logits
from specdec.cache import FeatureCache
from specdec.contracts import Features, IntArray, Scores, Tree, Want, is_chain


class Eagle3Head(TorchEagle3Head):
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

    backend = "eager"

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
