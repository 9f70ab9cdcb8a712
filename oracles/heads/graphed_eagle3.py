"""An EAGLE-3 head in passes of a few shapes, each a CUDA graph from its second use on."""

from collections.abc import Sequence

import torch
from torch import Tensor

from oracles.graphed import GraphedTransformer
from oracles.graphed.graphed_features import Arrival, GraphedFeatureCache
from oracles.graphed.graphed_memory import Memory, Shelf
from oracles.graphed.graphed_nodes import PassNodes
from oracles.graphed.graphed_passes import Passes, PassPart
from oracles.graphed.graphed_scoring import GraphedChaining
from oracles.graphed.graphs import Outputs
from oracles.graphed.upload import Call, PassIntegers
from oracles.graphed.ways import way_of
from oracles.heads.eagle3_config import Eagle3Shape
from oracles.heads.eagle3_head import TorchEagle3Head, check_order
from oracles.heads.eagle3_network import Eagle3Network
from oracles.transformer.pass_parts import check_call
from specdec.contracts import Draft, Features, IntArray, Scores, Tree, Want, is_chain


class GraphedEagle3Head(GraphedChaining[GraphedFeatureCache], TorchEagle3Head):
    """Score trees of tokens with features, as ``Eagle3Head`` does, in the shapes and graphs of a graphed oracle.

    Args:
        network: with its weights; it is packed.
        shape, name: see ``Eagle3Base``.
        oracle: lends embedding and head if the network has none. The head has its own graphs, of the same number of
            shapes.

    Attributes:
        counts: of its passes, including those that take in features.

    Guarantee: scores are those of ``Eagle3Head`` up to rounding. Nothing in a call waits for the device.
    Cost: a pass takes one copy to the device, and one read of its weights; see ``GraphedTransformer``. Between runs it
        keeps the memory of one cache, and always the hidden states of ``MAX_NODES`` positions.
    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840).
    """

    backend = "graphed"

    def __init__(self, network: Eagle3Network, shape: Eagle3Shape, oracle: GraphedTransformer, name: str) -> None:
        TorchEagle3Head.__init__(self, network, shape, oracle, name)
        shelf = Shelf(GraphedFeatureCache, self.config, self.dtype, self.device, self.config.hidden_size)
        way = way_of(self.device, self.dtype, self.config.head_size, bitwise=False, attention=oracle.attention)
        passes = Passes(self._run_pass, self._read, way)
        GraphedChaining.__init__(self, shelf, passes, *oracle.graph_options)
        self._network.rotary.hold(self.max_context, self.dtype, self.device)
        self._arrival = Arrival(self.config, self._take_in, self._upload, self._graphs)

    @torch.no_grad()
    def put(self, features: Features, cache: GraphedFeatureCache) -> None:
        """Take in the outputs of the oracle's layers at positions, each projected to a feature; see ``Arrival.bring``.

        Raises:
            ValueError: see ``specdec.cache.FeatureSlots.put``, or something lies on another device.
            RuntimeError: another thread is in the middle of a call.
        """
        self._check_places(cache, {"scored": features.scored[0]})
        with self._alone():
            cache.check_put(features.rows, features.starts, features.counts)
            self._arrival.bring(features, cache.memory)
            cache.known[features.rows] = features.starts + features.counts

    @torch.no_grad()
    def score(
        self,
        tokens: Tensor,
        parents: Tensor | None,
        num_nodes: Tensor,
        cache: GraphedFeatureCache,
        rows: IntArray,
        want: Want = "all",
        hidden: Sequence[int] = (),
        first: int = 0,
    ) -> Scores:
        """Score trees of nodes ``[B, M]``, see ``Eagle3Head.score``.

        ``tokens``, ``parents`` and ``num_nodes`` may lie on the host: they go to the device with the rest.

        Raises:
            ValueError: as there, or a tensor lies on another device; on the host, a node whose parent is of the same
                pass and has no known feature after it.
            RuntimeError: another thread is in the middle of a call.

        Cost: see ``GraphedTransformer.score``.
        """
        longest = max(cache.lengths[rows].tolist(), default=0)
        check_call(longest, self.max_context, want, hidden, num_layers=1)
        self._check_places(cache, tokens=tokens, parents=parents, num_nodes=num_nodes)
        above = None if is_chain(parents) else parents
        check_order(Tree(tokens, above, num_nodes), cache, rows, first)
        with self._alone():
            starts = cache.reserve(rows, tokens.shape[1], first)
            call = Call(
                tokens[:, first:], above, num_nodes, rows, starts, first, known=self._known_positions(cache, rows)
            )
            return self._calls.answer(call, cache.memory, PassPart(hidden=tuple(hidden)), want)

    def device_chains(
        self, tokens: IntArray, counts: IntArray, cache: GraphedFeatureCache, rows: IntArray, limits: IntArray
    ) -> Draft:
        """Follow the likeliest ids after ids ``[B, M]`` with features; see ``GraphedChaining.device_chains``.

        Raises:
            ValueError: as there, or a committed id other than the first has no known feature.
            RuntimeError: another thread is in the middle of a call.

        Cost: see there.
        """
        check_order(Tree(torch.from_numpy(tokens), None, torch.from_numpy(counts)), cache, rows, 0)
        return super().device_chains(tokens, counts, cache, rows, limits)

    def _take_in(self, nodes: PassNodes, states: tuple[Tensor, ...]) -> None:
        nodes.memory.write_features(nodes.rows, nodes.slots, nodes.is_real, self._network.combine(states))

    def _known_positions(self, cache: GraphedFeatureCache, rows: IntArray) -> IntArray:
        return cache.known[rows]

    def _run_pass(self, memory: Memory, part: PassPart, packed: PassIntegers, stream: Tensor | None) -> Outputs:
        """Return the streams after the layer, ``[R * W, H]``; see ``run_pass``."""
        nodes = PassNodes(self.config, packed, memory)
        feature = memory.read_features(nodes.rows, nodes.above)
        at = packed.tokens.flatten(), nodes.positions.flatten(), self.max_context
        after = nodes.slots + 1
        out = self._stream(*at, feature, self._calls.passes.way.attention(nodes))
        is_guess = nodes.is_real & (after >= packed.known.unsqueeze(1))
        memory.write_features(nodes.rows, after, is_guess, self._guess(out))
        return (out, *(out for _ in part.hidden))
