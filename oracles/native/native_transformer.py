"""An oracle whose pass is one call of compiled code."""

import ctypes
from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oracles.native import bindings
from oracles.native.adjusting import adjusting
from oracles.native.chains import follow
from oracles.native.host_memory import FLOAT64, floats, integers, to_bytes, to_host
from oracles.native.keys_values import NativeCache
from oracles.native.native_model import NativeModel
from oracles.native.texts import text_of
from oracles.transformer.bits import scores_are_bitwise
from oracles.transformer.blocks import Adapter, Norm
from oracles.transformer.eager import Transformer
from oracles.transformer.pass_parts import Shaped, check_call, first_layer
from specdec.contracts import (
    Adjustments,
    ChainDraws,
    ChainKeys,
    ChainWatch,
    Float32Array,
    FloatArray,
    IntArray,
    Scores,
    TreeDraws,
    TreePlan,
    Want,
)
from specdec.kernels.compiled import FILTERS, place


class NativeTransformer(Shaped):
    """Score with one call of compiled code a pass, on the CPU, in float32 arithmetic from weights as they are stored.

    Args:
        model: gives up its weights, one layer after the other: they are resident once. A tied embedding is read out of
            the head. Layers that ``Transformer.quantise`` rounded are read in their few bits.

    Attributes:
        config, eos_ids, tokenizer, chat_template: those of the model.
        bitwise: whether scores were found to be bitwise independent of the pass's width, tree, batch and chunking.

    Raises:
        NativeUnavailable: the compiled code cannot be had here.

    Guarantee: a node's logits depend bitwise on the ids of its path only, in however many parts, rows, trees or threads
        they were scored, and are the same on every supported machine.

    Cost: two Python threads may score at once; each holds scratch memory of its own.
    """

    backend, chains, adjusts = "native", True, True
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, model: Transformer) -> None:
        self.config, self.tokenizer, self.eos_ids = model.config, model.tokenizer, model.eos_ids
        self.chat_template = model.chat_template
        self._model = NativeModel.of(model)
        self._norm = deepcopy(model.model.norm).float().requires_grad_(False)
        self.bitwise = scores_are_bitwise(self)

    @staticmethod
    def check() -> None:
        """Do nothing where the compiled code can be had, which the first call on a machine waits for.

        Raises:
            NativeUnavailable: it cannot, with the reason.
        """
        bindings.functions()

    @property
    def weight_type(self) -> str:
        """What the weights of the head are stored in, as a rule all weights: the name of a dtype or format."""
        return self._model.weight_type

    @property
    def cache_format(self) -> Hashable:
        """What its caches hold, and how: whatever the weights, of the same shape."""
        return self.backend, self.config

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights."""
        return self._model.weights.bytes

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> NativeCache:
        """Return an empty cache of ``num_rows`` sequences of up to ``capacity`` slots, rounded up to whole groups.

        Raises:
            ValueError: it would exceed ``max_cache_bytes`` (None: half of the free memory).
        """
        return NativeCache(self.config, self._model.struct, num_rows, capacity, max_cache_bytes)

    def score(
        self,
        tokens: Tensor,
        parents: Tensor | None,
        num_nodes: Tensor,
        cache: NativeCache,
        rows: IntArray,
        want: Want = "all",
        hidden: Sequence[int] = (),
        first: int = 0,
        *,
        layers: tuple[int, int] | None = None,
        stream: Tensor | None = None,
    ) -> Scores:
        """Score trees of nodes in one pass, or in a part of one, as ``specdec.contracts.LayeredOracle`` spells out.

        ``hidden`` numbers layers from 0; the residual stream after a layer is returned. What pads a batch is not
        scored: its logits are those of the row's last node, its hidden layers zeros.

        Raises:
            ValueError: an unknown ``want`` or layer, a row without room, a pending token beyond ``max_context``, a part
                that does not begin or end as ``stream`` and ``want`` say, or ids, parents or counts that cannot be.

        Cost: one read of the weights, and of the rows' keys and values.
        """
        longest = max(cache.lengths[rows].tolist(), default=0)
        check_call(self.config, longest, want, hidden)
        batch, width = tokens.shape
        shape = (batch, width - first, self.config.hidden_size)
        lowest, last = (0, self.config.num_layers) if layers is None else layers
        if layers is not None or stream is not None:
            first_layer(layers, stream, shape, want, hidden, self.config.num_layers)
        cache.reserve(rows, width, first)
        kept = floats(len(hidden), *shape).unbind() if hidden else ()
        found = None
        if want != "none":
            read = (batch, shape[1] if want == "all" else 1)
            found = floats(*read, self.config.vocab_size), integers(*read), floats(*read)
        self._model.run(
            cache,
            batch=batch,
            width=width,
            tokens=to_host(tokens, torch.int64),
            parents=None if parents is None else to_host(parents, torch.int64, (batch, width)),
            num_nodes=to_host(num_nodes, torch.int64, (batch,)),
            rows=rows,
            first=first,
            layers=(lowest, last),
            stream=None if stream is None else to_host(stream, torch.float32),
            want=want,
            found=found or (),
            hidden=hidden,
            kept=kept,
            end=longest + width,
        )
        return Scores(None, kept) if found is None else Scores(found[0], kept, found[1:])

    def greedy_chains(
        self,
        ids: IntArray,
        ends: IntArray,
        cache: NativeCache,
        rows: IntArray,
        limits: IntArray,
        watch: ChainWatch | None = None,
        adjustments: Adjustments | None = None,
    ) -> tuple[IntArray, Float32Array]:
        """Follow the likeliest ids in one call, as ``specdec.contracts.ChainingOracle`` spells out.

        Raises:
            ValueError: a row without room or position for its ids and the drafted ones, or ids, ends or adjustments
                that cannot be.

        Cost: one pass, and one more for each further id; a law of O(V) for each id that a watch is told of.
        """
        return follow(self._model, cache, ids, ends, rows, limits, watch, None, adjustments)

    def sampled_chains(
        self,
        ids: IntArray,
        ends: IntArray,
        cache: NativeCache,
        rows: IntArray,
        limits: IntArray,
        draws: ChainDraws,
        watch: ChainWatch | None = None,
        adjustments: Adjustments | None = None,
    ) -> tuple[IntArray, Float32Array, Float32Array]:
        """Draw ids in one call, as ``specdec.contracts.ChainingOracle`` spells out.

        Raises:
            ValueError: see ``greedy_chains``, or what draws are made by is not of these rows.

        Cost: that of ``greedy_chains``; a law and a draw of O(V) for each id.
        """
        laws = np.empty((len(rows), max(limits.tolist(), default=0), self.vocab_size), dtype=np.float32)
        struct = _draws("chains", len(rows), draws.filters, draws.keys, laws)
        drafted, peaks = follow(self._model, cache, ids, ends, rows, limits, watch, struct, adjustments)
        return drafted, peaks, laws[:, : drafted.shape[1]]

    def trees(
        self,
        ids: IntArray,
        ends: IntArray,
        cache: NativeCache,
        rows: IntArray,
        plan: TreePlan,
        limits: IntArray,
        draws: TreeDraws,
        adjustments: Adjustments | None = None,
    ) -> tuple[IntArray, Float32Array, Float32Array | None]:
        """Draft trees in one call, as ``specdec.contracts.ChainingOracle`` spells out.

        Raises:
            ValueError: see ``greedy_chains``, or what draws are made by is not of these rows.

        Cost: a pass for the tokens, and one a level; a law of O(V), ranked or drawn from, for each node with children.
        """
        batch, inner = len(rows), len(plan.depths)
        laws = None if draws.keys is None else np.empty((batch * inner, self.vocab_size), dtype=np.float32)
        struct = _draws("trees", batch, draws.filters, draws.keys, laws)
        text, size = text_of(ids, ends, batch), len(plan.parents)
        drafted, peaks = np.empty((batch, size), np.int64), np.empty((batch, inner), np.float32)
        growth = bindings.Growth(to_bytes(plan.parents), to_bytes(limits), place(drafted), place(peaks), size)
        if (adjusted := adjusting(adjustments, batch)) is not None:
            growth.adjustments = ctypes.addressof(adjusted)
        asked = ctypes.addressof(text), ctypes.addressof(growth), ctypes.addressof(struct)
        self._model.draft("specdec_trees", cache, rows, ends, size, asked)
        return drafted, peaks, laws

    def read_out(self, stream: Tensor) -> Tensor:
        """Return logits ``[R, V]`` from a residual stream ``[R, D]``, as after the last layer."""
        return _read(self._model, self.num_layers, stream)

    def read_out_behind(self, adapter: Adapter) -> Callable[[Tensor], Tensor]:
        """Return what reads logits ``[R, V]`` from a stream ``[R, D]`` that passes through an adapter first."""
        return partial(_read, self._model.behind(adapter), 0)

    def last_norm(self, stream: Tensor) -> Tensor:
        """Return the residual stream ``[..., D]`` as the head reads it: normed, as torch rounds."""
        normed: Tensor = self._norm(stream)
        return normed

    def embed(self, ids: Tensor) -> Tensor:
        """Return ``[..., D]`` rows of the embedding table, as a pass reads them, without what positions add.

        Raises:
            ValueError: an id outside the vocabulary.
        """
        flat = to_host(ids, torch.int64).flatten()
        return self._model.embed(flat).view(*ids.shape, -1)

    def read_out_after(self, norm: Norm) -> Callable[[Tensor], Tensor]:
        """Return what reads logits ``[R, V]`` from streams ``[R, D]`` through a norm in place of the last one."""
        return partial(_read, self._model.through(norm), self.num_layers)


def _draws(
    what: str, batch: int, filters: FloatArray, keys: ChainKeys | None, laws: NDArray[np.float32] | None
) -> bindings.Draws:
    """Return how ids are drawn."""
    fits = filters.shape == (len(FILTERS), batch)
    if not fits or not (keys is None or keys.bases.shape == keys.firsts.shape == (batch,)):
        shapes = [array.shape for array in (filters, *(() if keys is None else (keys.bases, keys.firsts)))]
        raise ValueError(f"{what} of {batch} rows cannot be drawn by filters, bases and firsts of shapes {shapes}")
    if keys is None or laws is None:
        return bindings.Draws(to_bytes(filters, FLOAT64))
    numbers = to_bytes(keys.bases), to_bytes(keys.firsts)
    return bindings.Draws(to_bytes(filters, FLOAT64), *numbers, place(laws), keys.is_race)


def _read(model: NativeModel, layer: int, stream: Tensor) -> Tensor:
    """Return the logits ``[R, V]`` that the layers from ``layer`` on make of a stream ``[R, D]``."""
    stream = to_host(stream, torch.float32, (len(stream), model.config.hidden_size))
    logits = floats(len(stream), model.config.vocab_size)
    layers = (layer, model.struct.num_layers)
    model.run(None, batch=len(stream), width=1, layers=layers, want="all", stream=stream, found=(logits,))
    return logits
