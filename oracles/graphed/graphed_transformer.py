"""An oracle whose passes have a few shapes, each a CUDA graph from its second use on."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import torch
from torch import Tensor

from oracles.graphed.calls import Calls
from oracles.graphed.graphed_bits import differing_bucket
from oracles.graphed.graphed_memory import GraphedCache, Shelf
from oracles.graphed.graphed_passes import Passes, PassPart, run_pass
from oracles.graphed.graphed_scoring import GraphedChaining
from oracles.graphed.graphs import MOST_GRAPHS, Capture, Graphs, PassCounts
from oracles.graphed.upload import Call
from oracles.graphed.ways import AttentionName, way_of
from oracles.transformer.bits import has_bitwise_scores
from oracles.transformer.blocks import Adapter, Norm
from oracles.transformer.eager import Transformer
from oracles.transformer.pass_parts import TransformerShape, check_call, first_layer
from specdec.contracts import IntArray, Scores, Want, is_chain


class GraphedTransformer(GraphedChaining[GraphedCache], TransformerShape):
    """Score in passes of a few shapes: the inputs of a pass go to the device in one copy, and nothing waits for it.

    Rows and nodes are padded to the next bucket; lengths, positions, slots and trees are tensors that the pass reads,
    so no shape depends on the context. Larger calls are cut into several passes. A repeated shape is replayed as a CUDA
    graph; on a CPU the same function runs directly.

    Args:
        model: packed, as ``oracles.load`` has it; it computes the layers. Do not move it afterwards.
        max_graphs: graphs that may exist at once, at least 1.
        new_capture: returns a way to make graphs of passes, one for all graphs that exist together; None: that of
            ``torch.cuda.CUDAGraph`` on a CUDA device, elsewhere there are no graphs.
        bitwise: compute so that a node's bits depend on its path only, and check it: attention runs in chunks of
            positions, all else in tiles of ``TILE`` rows.
        attention: how passes attend, see ``ways``, and those of its heads; None: the one that fits.

    Attributes:
        config, eos_ids, tokenizer, chat_template: those of the model.
        counts: what has run in graphs and outside, and how much of it was padding.
        attention: as given.
        bitwise: as given; if True, it was checked when the oracle was made, on three seeds and in every bucket.

    Raises:
        ValueError: ``max_graphs`` is below 1; the attention is unknown or cannot be bitwise; or bits depend on the pass
            although they must not, and the message names the bucket.

    Guarantee: the same calls give the same bits. Scores are those of the model up to rounding, which depends on the
        pass's shape unless the oracle is ``bitwise``. Padding changes no real row and writes to no slot.

    Cost: memory of the model's weights once, of rotations for the whole context, and, between runs, of one cache. One
        thread and one stream may use it at a time; a call in the middle of another thread's is refused.
    """

    backend, chains = "graphed", False

    def __init__(
        self,
        model: Transformer,
        max_graphs: int = MOST_GRAPHS,
        new_capture: Callable[[], Capture] | None = None,
        *,
        bitwise: bool = False,
        attention: AttentionName | None = None,
    ) -> None:
        way = way_of(model.device, model.dtype, model.config.head_size, bitwise, attention)
        passes = Passes(partial(run_pass, model, way), model.read_out, way)
        shelf = Shelf(GraphedCache, model.config, model.dtype, model.device)
        super().__init__(shelf, passes, max_graphs, new_capture)
        self.config, self.tokenizer, self.eos_ids = model.config, model.tokenizer, model.eos_ids
        self.chat_template, self.bitwise, self._model = model.chat_template, bitwise, model
        self.attention = attention
        model.model.rotary.hold(model.max_context, model.dtype, model.device)
        if bitwise:
            calls, self._calls = self._calls, Calls(passes, self._upload, Graphs(None, 1, PassCounts()))
            self._check_bits()
            self._calls, self._upload.count = calls, 0

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self._model.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and cache."""
        return self._model.dtype

    @property
    def weight_type(self) -> str:
        """How the weights of the linear layers are stored: the name of a dtype or of a quantised format."""
        return self._model.weight_type

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights."""
        return self._model.weight_bytes

    @property
    def cache_format(self) -> Hashable:
        """The format of its caches: the same for all weights of one shape, dtype and device, packed or not."""
        return self.backend, self._model.cache_format

    @torch.no_grad()
    def score(
        self,
        tokens: Tensor,
        parents: Tensor | None,
        num_nodes: Tensor,
        cache: GraphedCache,
        rows: IntArray,
        want: Want = "all",
        hidden: Sequence[int] = (),
        first: int = 0,
        *,
        layers: tuple[int, int] | None = None,
        stream: Tensor | None = None,
    ) -> Scores:
        """Score trees of nodes ``[B, M]`` in a pass or a part of one; see ``specdec.contracts.LayeredOracle.score``.

        ``tokens``, ``parents`` and ``num_nodes`` may lie on the host: they go to the device with the rest. ``hidden``
        numbers layers from 0; the residual stream after a layer is returned. Logits are computed for real rows only,
        after the graph, into the caller's own memory.

        Raises:
            ValueError: an unknown ``want`` or layer, a row without room, a pending token beyond ``max_context``, a part
                that does not begin or end as ``stream`` and ``want`` say, a tensor or cache on another device.
            RuntimeError: another thread is in the middle of a call.

        Cost: one pass for up to 256 rows (fewer of many nodes, see ``buckets.MAX_NODES``) of up to 128 nodes.
        """
        longest = max(cache.lengths[rows].tolist(), default=0)
        check_call(longest, self.max_context, want, hidden, self.num_layers)
        shape = (tokens.shape[0], tokens.shape[1] - first, self.config.hidden_size)
        lowest = first_layer(layers, stream, shape, want, hidden, self.num_layers)
        self._check_places(cache, {"stream": stream}, tokens=tokens, parents=parents, num_nodes=num_nodes)
        part = PassPart((lowest, self.num_layers if layers is None else layers[1]), tuple(hidden))
        with self._alone():
            starts, above = cache.reserve(rows, tokens.shape[1], first), None if is_chain(parents) else parents
            call = Call(tokens[:, first:], above, num_nodes, rows, starts, first, stream)
            return self._calls.answer(call, cache.memory, part, want)

    def read_out(self, stream: Tensor) -> Tensor:
        """Return logits ``[R, V]``, float32 at least, from a residual stream ``[R, D]``, as after the last layer."""
        return self._calls.passes.read_out(stream)

    def last_norm(self, stream: Tensor) -> Tensor:
        """Return the residual stream ``[R, D]`` as the head reads it: normed."""
        return self._calls.passes.in_tiles(self._model.last_norm)(stream)

    def embed(self, ids: Tensor) -> Tensor:
        """Return ``[..., D]`` rows of the embedding table, without position embeddings."""
        return self._model.embed(ids)

    def read_out_after(self, norm: Norm) -> Callable[[Tensor], Tensor]:
        """Return a function from streams ``[R, D]`` to logits ``[R, V]``, with a norm in place of the last one."""
        return self._calls.passes.in_tiles(self._model.read_out_after(norm))

    def read_out_behind(self, adapter: Adapter) -> Callable[[Tensor], Tensor]:
        """Return a function from streams ``[R, D]`` to logits ``[R, V]`` through an adapter."""
        return self._calls.passes.in_tiles(self._model.read_out_behind(adapter))

    @torch.no_grad()
    def _check_bits(self) -> None:
        """Raise ValueError if a node's bits depend on the pass."""
        found = differing_bucket(self._calls, self.config, self.dtype, self.device)
        if found is None and not has_bitwise_scores(self):
            found = "passes of several lengths, rows and trees"
        if found is not None:
            raise ValueError(
                f"bitwise is True, and on {self.device} in {self.dtype} bits depend on the pass: {found}; leave it out"
            )
