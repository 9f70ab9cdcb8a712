"""Passes, chains and trees in one call of compiled code, for any model with weights in native layout."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oracles.native import bindings
from oracles.native.call_inputs import adjustments_of, draws_of, text_of
from oracles.native.chains import follow
from oracles.native.host_memory import floats, to_bytes, to_host
from oracles.native.keys_values import NativeCache
from oracles.native.native_model import NativeModel
from oracles.transformer.config import TransformerConfig
from oracles.transformer.pass_parts import check_call, first_layer
from specdec.contracts import (
    Adjustments,
    ChainWatch,
    Draws,
    Float32Array,
    IntArray,
    Scores,
    TreePlan,
    Want,
)
from specdec.kernels.compiled import place
from specdec.transfers import HOST


class NativeScoring:
    """Score and draft as ``specdec.contracts.ChainingOracle``, on the CPU, in float32 arithmetic.

    Attributes:
        config: the shape.
        native: the weights.
    """

    backend, chains, adjusts = "native", True, True
    device, dtype = HOST, torch.float32
    config: TransformerConfig
    native: NativeModel

    @property
    def weight_type(self) -> str:
        """How the weights of the head, and as a rule all weights, are stored: the name of a dtype or format."""
        return self.native.weight_type

    @property
    def weight_bytes(self) -> int:
        """Memory of its own weights."""
        return self.native.weights.bytes

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
        """Score trees of nodes ``[B, M]`` in a pass or a part of one; see ``specdec.contracts.LayeredOracle.score``.

        ``hidden`` numbers layers from 0; the residual stream after a layer is returned. Padding nodes are not scored:
        their logits are those of the row's last node, their hidden states zeros.

        Raises:
            ValueError: a cache of another shape or backend, an unknown ``want`` or layer, a row without room, a pending
                token beyond ``max_context``, a part that does not begin or end as ``stream`` and ``want`` say, or
                invalid ids, parents or counts.

        Cost: one read of the weights, and of the rows' keys and values.
        """
        if getattr(cache, "config", None) is not self.native.config:
            self.native.check_cache(cache)
        longest = max(cache.lengths[rows].tolist(), default=0)
        check_call(longest, self.config.max_context, want, hidden, self.config.num_layers)
        batch, width = tokens.shape
        if rows.shape != (batch,):
            raise ValueError(f"rows has shape {rows.shape}, and tokens {tuple(tokens.shape)}: give each its row")
        shape = (batch, width - first, self.config.hidden_size)
        lowest = 0
        if layers is not None or stream is not None:
            lowest = first_layer(layers, stream, shape, want, hidden, self.config.num_layers)
        cache.reserve(rows, width, first)
        ids, counts = to_host(tokens, torch.int64), to_host(num_nodes, torch.int64, (batch,))
        fields: dict[str, Any] = {
            **{"tokens": ids.data_ptr(), "num_nodes": counts.data_ptr()},
            **{"rows": to_bytes(rows), "lengths": cache.lengths_address},
            **{"batch": batch, "width": width, "first": first, "want": bindings.WANTS[want]},
            **{"first_layer": lowest, "last_layer": self.config.num_layers if layers is None else layers[1]},
        }
        if parents is not None:
            parents = to_host(parents, torch.int64, (batch, width))
            fields["parents"] = parents.data_ptr()
        if stream is not None:
            stream = to_host(stream, torch.float32)
            fields["stream"] = stream.data_ptr()
        kept = floats(len(hidden), *shape).unbind() if hidden else ()
        found = None
        if want != "none":
            read = (batch, shape[1] if want == "all" else 1)
            likeliest = torch.empty(read, dtype=torch.int64, device=HOST)
            found = floats(*read, self.native.struct.vocabulary), likeliest, floats(*read)
            fields |= zip(("logits", "likeliest", "peaks"), map(Tensor.data_ptr, found), strict=True)
        self.native.run(cache, longest + width, fields, hidden, kept)
        return Scores(None, kept) if found is None else Scores(found[0], kept, found[1:])

    def follow_ids(
        self,
        ids: IntArray,
        ends: IntArray,
        cache: NativeCache,
        rows: IntArray,
        limits: IntArray,
        watch: ChainWatch | None = None,
        draws: Draws | None = None,
        adjustments: Adjustments | None = None,
    ) -> tuple[IntArray, Float32Array, Float32Array | None]:
        """Follow the likeliest ids after ids ``[B, L]``, or drawn ones, in one call.

        See ``specdec.contracts.ChainingOracle.follow_ids``.

        Raises:
            ValueError: a row without room or positions for its ids and the drafted ones, or invalid ids, ends,
                adjustments or draws.

        Cost: one pass, and one more for each further id; a law and a draw of O(V) for each id that is drawn, a law for
            each id that a watch is told of.
        """
        start = text_of(ids, ends, len(rows))
        return follow(self.native, cache, "specdec_chains", start, ends, rows, limits, watch, draws, adjustments)

    def trees(
        self,
        ids: IntArray,
        ends: IntArray,
        cache: NativeCache,
        rows: IntArray,
        plan: TreePlan,
        limits: IntArray,
        draws: Draws,
        adjustments: Adjustments | None = None,
    ) -> tuple[IntArray, Float32Array, Float32Array | None]:
        """Draft trees after ids ``[B, L]`` in one call; see ``specdec.contracts.ChainingOracle.trees``.

        Raises:
            ValueError: see ``follow_ids``.

        Cost: a pass for the tokens, and one for each level; a law of O(V), ranked or drawn from, for each node with
            children.
        """
        batch, inner, width = len(rows), len(plan.depths), self.native.struct.vocabulary
        if limits.shape != (batch,):
            raise ValueError(f"limits has shape {limits.shape}: give one for each of {batch} rows")
        laws = None if draws.keys is None else np.empty((batch * inner, width), dtype=np.float32)
        struct = draws_of("trees", batch, draws, laws)
        text, size = text_of(ids, ends, batch), len(plan.parents)
        drafted, peaks = np.empty((batch, size), np.int64), np.empty((batch, inner), np.float32)
        growth = bindings.Growth(to_bytes(plan.parents), to_bytes(limits), place(drafted), place(peaks), size)
        adjusted = None if adjustments is None else adjustments_of(adjustments, batch)
        if adjusted is not None:
            growth.adjustments = ctypes.addressof(adjusted)
        asked = ctypes.addressof(text), ctypes.addressof(growth), ctypes.addressof(struct)
        self.native.draft("specdec_trees", cache, rows, ends, size, asked)
        return drafted, peaks, laws
