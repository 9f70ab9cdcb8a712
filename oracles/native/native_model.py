"""A model's weights in native layout, and the passes that run on them."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from oracles.native import bindings, threads
from oracles.native.host_memory import floats, to_bytes, to_host
from oracles.native.keys_values import NativeCache
from oracles.native.packing import BlockParts, Weights, layer_of, mlp_layer, round_up
from oracles.native.rotations import tables_of
from oracles.transformer.blocks import Adapter, Block, Norm
from oracles.transformer.config import TransformerConfig
from oracles.transformer.draft_vocabulary import DraftHead
from oracles.transformer.eager import Transformer
from oracles.transformer.linear import Linear
from specdec.contracts import IntArray

_ALIGNMENT = 128
# Memory that passes write to, the offset from which they write, and its size.
_Scratch = tuple[Any, int | None, int]
_NO_SCRATCH: _Scratch = (None, None, 0)
_OWN_CACHE = "give one that new_cache of this model returned, or of another one with its config and backend"
_STORED_AS = {number: name for name, number in bindings.STORAGES.items()}


class InvalidCall(ValueError):
    """A call is invalid, and had no effect."""


class NativeModel:
    """Layers between an embedding and a head, as ``model.h`` lays them out.

    Args:
        config: the shape; layers and inner width are those of ``layers``.
        weights: the memory that the structures point into.
        layers, last, head: the structures.
        inner_size: width of the MLPs.
    """

    def __init__(
        self,
        config: TransformerConfig,
        weights: Weights,
        layers: Sequence[bindings.Layer],
        last: bindings.Norm,
        head: bindings.Linear,
        inner_size: int,
    ) -> None:
        self.config, self.weights = config, weights
        self._layers = (bindings.Layer * len(layers))(*layers)
        self.struct = bindings.Model(
            layers=ctypes.addressof(self._layers),
            last=last,
            head=head,
            vocabulary=config.vocab_size,
            hidden=config.hidden_size,
            num_layers=len(layers),
            context=min(config.max_context, bindings.LARGEST),
            query_heads=config.num_heads,
            kv_heads=config.kv_heads,
            head_size=config.head_size,
            rotary_size=config.rotary_size,
            inner_size=inner_size,
            activation=bindings.ACTIVATIONS[config.activation],
            gated=config.gated,
            parallel_residual=config.parallel_residual,
            qk_eps=config.norm_eps,
        )
        self.address = ctypes.addressof(self.struct)
        self._rows = config.vocab_size  # of the embeddings
        self._rotated = config.max_context if config.rotary_size else 0  # the most positions possible
        self._tables = tables_of(config, self._rotated, 0)
        self._nowhere = bindings.Cache()
        self._library = bindings.functions()
        self.base: NativeModel | None = None
        self._idle: list[_Scratch] = []
        self._parts: Any = None  # norms, see ``projection``

    @property
    def weight_type(self) -> str:
        """How the weights of the head are stored."""
        return _STORED_AS[self.struct.head.storage]

    @property
    def weight_types(self) -> set[str]:
        """How the weights of all linear layers are stored: the names of dtypes and formats."""
        inner = (part for layer in self._layers for part in (layer.qkv, layer.out, layer.up, layer.down))
        return {_STORED_AS[part.storage] for part in (self.struct.head, *inner) if part.columns}

    @classmethod
    def of(cls, model: Transformer) -> "NativeModel":
        """Return a transformer's weights; it frees its own layer by layer, so that they are resident once."""
        decoder, config = model.model, model.config
        blocks: list[BlockParts] = [block for block in decoder.layers if isinstance(block, Block)]
        decoder.layers = nn.ModuleList()
        table = None if config.tie_embeddings else decoder.embed_tokens
        native = cls.of_parts(config, blocks, decoder.norm, model.cut_head(), table)
        if decoder.embed_positions is not None:
            positions = decoder.embed_positions.weight
            native.struct.positions, native.struct.position_storage = native.weights.table(positions)
        return native

    @classmethod
    def of_parts(
        cls,
        config: TransformerConfig,
        blocks: list[BlockParts],
        norm: Norm,
        head: Linear | None,
        table: nn.Embedding | None,
        host: "NativeModel | None" = None,
    ) -> "NativeModel":
        """Return a model of some layers with the parts around them.

        Args:
            config: its shape.
            blocks: the layers; the list is emptied, so that they are resident once.
            norm: the last norm.
            head: None: the host's.
            table: the embeddings; None: the columns of the head.
            host: lends its head if there is none here.
        """
        weights, layers = Weights(), []
        while blocks:
            layers.append(layer_of(config, weights, blocks.pop(0)))
        own = bindings.Linear() if head is None else weights.linear([head])
        model = cls(config, weights, layers, weights.norm(norm), own, config.intermediate_size)
        if table is not None:
            model.read_table(table)
        if host is not None and head is None:
            model._borrow_head(host)
        if isinstance(head, DraftHead):
            model.write_only(head.target_ids)
        return model

    def read_table(self, table: nn.Embedding) -> None:
        """Read the embeddings of ids from a table."""
        self.struct.embeddings, self.struct.embedding_storage = self.weights.table(table.weight)
        self._rows = len(table.weight)

    def write_only(self, ids: Tensor) -> None:
        """Let the head's columns write these ids ``[R]``, which rise, and no others."""
        self.struct.written_ids, self.struct.written = self.weights.address(ids.to("cpu", torch.int32)), len(ids)

    def set_reaches(self, reaches: Sequence[bindings.Reach]) -> None:
        """Replace what the config says about which positions the nodes of each layer see."""
        for layer, reach in zip(self._layers, reaches, strict=True):
            layer.reach = reach

    def _borrow_head(self, other: "NativeModel") -> None:
        """Use another model's head, which writes the ids that it writes there."""
        self.struct.head, self.base = other.struct.head, other
        self.struct.written_ids, self.struct.written = other.struct.written_ids, other.struct.written

    def projection(self, layer: Linear, norm: Norm | None = None, parts: Sequence[Norm] = ()) -> "NativeModel":
        """Return a model that is only a head: it norms and projects rows. This model holds its weights.

        Args:
            layer: the projection.
            norm: of whole rows, before it.
            parts: norms of the parts of a row, each by itself, before that; none: rows are taken as they are.
        """
        last = bindings.Norm(None, None, 0.0, layer.in_features) if norm is None else self.weights.norm(norm)
        model = NativeModel(self.config, self.weights, [], last, self.weights.linear([layer]), 1)
        shape = model.struct
        shape.hidden, shape.vocabulary = layer.in_features, layer.out_features
        shape.query_heads, shape.kv_heads, shape.head_size = 1, 1, 1
        model._parts = (bindings.Norm * len(parts))(*map(self.weights.norm, parts))
        shape.num_parts, shape.parts = len(parts), ctypes.addressof(model._parts)
        return model

    def behind(self, adapter: Adapter) -> "NativeModel":
        """Return a model whose only layer is an adapter; norm and head are shared with this one."""
        weights = Weights()
        layer = mlp_layer(weights, adapter.mlp)
        layer.before_mlp = weights.norm(adapter.norm)
        return self._beside(weights, [layer], self.struct.last, adapter.mlp.up_proj.out_features)

    def through(self, norm: Norm) -> "NativeModel":
        """Return this model with another last norm."""
        weights = Weights()
        return self._beside(weights, list(self._layers), weights.norm(norm), self.struct.inner_size)

    def _beside(
        self, weights: Weights, layers: Sequence[bindings.Layer], last: bindings.Norm, inner_size: int
    ) -> "NativeModel":
        other = NativeModel(self.config, weights, layers, last, self.struct.head, inner_size)
        other._borrow_head(self)
        return other

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings ``[R, D]`` of ids ``[R]``, both contiguous on the host, without position embeddings.

        Raises:
            ValueError: an id has no row.
        """
        rows = floats(len(ids), self.config.hidden_size)
        answer = self._library.specdec_embed(self.address, ids.data_ptr(), len(ids), self._rows, rows.data_ptr())
        if answer:
            raise InvalidCall(bindings.FAULTS[answer])
        return rows

    def read_out(self, layer: int, stream: Tensor) -> Tensor:
        """Return logits ``[R, V]`` from streams ``[R, D]`` after the first ``layer`` layers, through the rest.

        Raises:
            ValueError: the streams have another shape, dtype or device.
        """
        given = to_host(stream, torch.float32, (len(stream), self.struct.hidden))
        logits = floats(len(given), self.struct.vocabulary)
        fields = {
            **{"stream": given.data_ptr(), "logits": logits.data_ptr(), "batch": len(given), "width": 1},
            **{"first_layer": layer, "last_layer": self.struct.num_layers, "want": bindings.WANTS["all"]},
        }
        self.run(None, 0, fields)
        return logits

    def run(
        self,
        cache: NativeCache | None,
        end: int,
        fields: dict[str, Any],
        hidden: Sequence[int] = (),
        kept: Sequence[Tensor] = (),
    ) -> None:
        """Run a pass.

        Args:
            cache: what it reads and writes; None: there is no attention.
            end: all positions of the pass are below it.
            fields: of a ``Call`` of ``model.h``, except tables, threads and scratch; they point to contiguous memory.
                Pointers that are left out are null.
            hidden: layers whose outputs are written.
            kept: a contiguous float32 tensor ``[B, N, D]`` of the host for each of them.

        Raises:
            ValueError: ids, parents, rows or counts are invalid.
        """
        if hidden:
            outs = (ctypes.c_void_p * len(kept))(*map(Tensor.data_ptr, kept))
            numbers = (ctypes.c_int32 * len(hidden))(*hidden)
            places = {"hidden": ctypes.addressof(outs), "hidden_layers": ctypes.addressof(numbers)}
            fields = {**fields, **places, "num_hidden": len(hidden)}
        slots = ctypes.addressof(self._nowhere) if cache is None else cache.address
        self._run("specdec_pass", slots, end, fields)

    def draft(
        self,
        entry: str,
        cache: NativeCache,
        rows: IntArray,
        ends: IntArray,
        most: int,
        rest: tuple[int, ...],
        check: Callable[[], None] | None = None,
    ) -> None:
        """Draft after the committed ids in rows of a cache.

        Args:
            entry: names a function of the library.
            cache, rows: see ``Oracle.score``.
            ends: ``[B]`` how many ids are committed.
            most: the most ids that a row drafts.
            rest: arguments of the function besides model, cache and call.
            check: called when the function is done.

        Raises:
            ValueError: the call is invalid, see ``bindings.FAULTS``.

        Guarantee: the cache keeps nothing if this raises, even through ``check`` or an interrupt.
        """
        if getattr(cache, "config", None) is not self.config:
            self.check_cache(cache)
        before, end = cache.lengths.copy(), max(ends.tolist(), default=0) + most
        try:
            self._run(entry, cache.address, end, {"rows": to_bytes(rows), "batch": len(rows)}, *rest)
            if check is not None:
                check()
        except InvalidCall as refused:
            sizes = f"capacity {cache.capacity}, max_context {self.config.max_context}"
            lengths = cache.lengths.tolist()
            raise ValueError(
                f"{refused} (rows {rows.tolist()} of the lengths {lengths}, ends {ends.tolist()}, {sizes})"
            ) from None
        except BaseException:
            cache.truncate(rows, before[rows])
            raise

    def check_cache(self, cache: NativeCache) -> None:
        """Raise ValueError if a cache is of models of another shape, or not in a native pass's layout."""
        if not isinstance(cache, NativeCache):
            raise ValueError(f"cache is a {type(cache).__name__}, which no native pass reads: {_OWN_CACHE}")
        if cache.config != self.config:
            raise ValueError(f"cache is of a model of another shape: {_OWN_CACHE}")

    def take_in(self, cache: NativeCache) -> None:
        """Take in the hidden states that arrived for a cache, as any other call of it does first."""
        # Keys of a context are turned by their positions.
        self._run("specdec_take_in", cache.address, max(cache.lengths.tolist(), default=0), {})

    def _run(self, entry: str, cache: int, end: int, fields: Mapping[str, Any], *rest: int) -> None:
        """Run a function of the library.

        Args:
            entry: its name.
            cache: address of the structure.
            end: all positions of the call are below it.
            fields: of the call, except tables, threads and scratch.
            rest: arguments besides model, cache and call.

        Raises:
            InvalidCall: the call is invalid.
        """
        try:
            scratch = self._idle.pop()
        except IndexError:  # none is free: another thread may have taken the last one just now
            scratch = _NO_SCRATCH
        tables = self._tables
        if min(end, self._rotated) > tables.places[2]:
            # Another thread may store shorter ones meanwhile: the call keeps those that it needs.
            tables = self._tables = tables_of(self.config, self._rotated, end)
        call, team = bindings.Call(**fields), threads.team()
        call.cosines, call.sines, call.rotations = tables.places
        call.threads = threads.num_threads()
        if team is not None:
            call.team = team
        _, call.scratch, call.scratch_bytes = scratch
        function, given = getattr(self._library, entry), (self.address, cache, ctypes.addressof(call), *rest)
        # More than once: a chain's later passes of one node may need more scratch than those before.
        while (answer := function(*given)) > 0:
            memory = np.empty(answer + _ALIGNMENT, dtype=np.uint8)
            scratch = memory, round_up(memory.ctypes.data, _ALIGNMENT), answer
            _, call.scratch, call.scratch_bytes = scratch
        self._idle.append(scratch)
        if answer:
            raise InvalidCall(bindings.FAULTS[answer])
