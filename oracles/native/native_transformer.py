"""An oracle whose pass is one call of compiled code."""

from collections.abc import Callable, Hashable
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor

from oracles.native import bindings
from oracles.native.host_memory import to_host
from oracles.native.keys_values import NativeCache, NativeMemory, page_bytes
from oracles.native.native_model import NativeModel
from oracles.native.native_scoring import NativeScoring
from oracles.transformer.bits import has_bitwise_scores
from oracles.transformer.blocks import Adapter, Norm
from oracles.transformer.eager import Transformer
from oracles.transformer.pass_parts import TransformerShape


class NativeMissing(UserWarning):
    """Passes run eagerly because this machine has no native pass."""


class NativeTransformer(NativeScoring, TransformerShape):
    """Score each pass with one call of compiled code, on the CPU, in float32 arithmetic, with weights as stored.

    Args:
        model: gives up its weights layer by layer, so that they are resident once. A tied embedding is read from the
            head. Layers that ``Transformer.quantise`` rounded are read in their few bits.

    Attributes:
        config, eos_ids, tokenizer, chat_template: those of the model.
        native: its weights, which a head may read too.
        bitwise: whether scores were found to be bitwise independent of the pass's width, tree, batch and chunking.

    Raises:
        NativeUnavailable: the compiled code is not available here.

    Guarantee: a node's logits depend bitwise on the ids of its path only, whatever the parts, rows, trees or threads in
        which they were scored, and are the same on every supported machine.

    Cost: several Python threads may score at once; each has scratch memory of its own.
    """

    def __init__(self, model: Transformer) -> None:
        self.config, self.tokenizer, self.eos_ids = model.config, model.tokenizer, model.eos_ids
        self.chat_template = model.chat_template
        self.native = NativeModel.of(model)
        self._norm = deepcopy(model.model.norm).float().requires_grad_(False)
        self.bitwise = has_bitwise_scores(self)

    @staticmethod
    def check() -> None:
        """Return if the compiled code is available; the first call on a machine waits until it is built.

        Raises:
            NativeUnavailable: it is not, with the reason.
        """
        bindings.functions()

    @property
    def cache_format(self) -> Hashable:
        """The format of its caches: the same for all weights of one shape."""
        return self.backend, self.config

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> NativeCache:
        """Return an empty cache of ``num_rows`` sequences of up to ``capacity`` slots, rounded up to whole groups.

        Raises:
            ValueError: it would exceed ``max_cache_bytes`` (None: half of the free memory).
        """
        memory = NativeMemory.for_rows(self.config, num_rows, capacity, max_cache_bytes)
        return NativeCache(memory, self.native.struct, num_rows, capacity)

    @property
    def prefix_key(self) -> Hashable:
        """See ``specdec.contracts.PrefixOracle``; packed weights are never written to."""
        return self.backend, self.config, self.weight_type, self.dtype, self.native.address

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return page_bytes(self.config)

    def new_memory(self, num_pages: int) -> NativeMemory:
        """Return an empty memory of pages."""
        return NativeMemory(self.config, num_pages)

    def cache_on(self, memory: NativeMemory, num_rows: int, capacity: int) -> NativeCache:
        """Return a cache of rows without pages, on a memory."""
        return NativeCache(memory, self.native.struct, num_rows, capacity, is_seated=False)

    def read_out(self, stream: Tensor) -> Tensor:
        """Return logits ``[R, V]`` from a residual stream ``[R, D]``, as after the last layer."""
        return self.native.read_out(self.num_layers, stream)

    def read_out_behind(self, adapter: Adapter) -> Callable[[Tensor], Tensor]:
        """Return a function from streams ``[R, D]`` to logits ``[R, V]`` through an adapter."""
        return partial(self.native.behind(adapter).read_out, 0)

    def last_norm(self, stream: Tensor) -> Tensor:
        """Return the residual stream ``[..., D]`` as the head reads it: normed, with torch's rounding."""
        normed: Tensor = self._norm(stream)
        return normed

    def embed(self, ids: Tensor) -> Tensor:
        """Return ``[..., D]`` rows of the embedding table, as a pass reads them, without position embeddings.

        Raises:
            ValueError: an id has no row; padding ids of the vocabulary have rows unless the embedding is tied.
        """
        flat = to_host(ids, torch.int64).flatten()
        return self.native.embed(flat).view(*ids.shape, -1)

    def read_out_after(self, norm: Norm) -> Callable[[Tensor], Tensor]:
        """Return a function from streams ``[R, D]`` to logits ``[R, V]``, with a norm in place of the last one."""
        return partial(self.native.through(norm).read_out, self.num_layers)
