"""The weights and caches of an eager transformer, and memories of pages that outlive a run."""

import math
from collections.abc import Hashable

import torch
from torch import nn

from oracles.transformer.attention import cache_shape
from oracles.transformer.blocks import Decoder, SelfAttention
from oracles.transformer.linear import weight_bytes_of, weight_type_of
from oracles.transformer.pass_parts import TransformerShape
from specdec.cache import PAGE, PagedKVCache, TensorMemory


class PagedTransformer(TransformerShape, nn.Module):
    """What an eager transformer says of its weights, and its caches, as ``specdec.contracts.PrefixOracle`` asks.

    Attributes:
        backend: see ``Transformer``.
        model: all but the head.
    """

    backend: str
    model: Decoder

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and cache."""
        return self.model.embed_tokens.weight.dtype

    @property
    def weight_type(self) -> str:
        """How the weights of the linear layers are stored: the name of a dtype or of a quantised format."""
        return weight_type_of(self) or str(self.dtype).removeprefix("torch.")

    @property
    def cache_format(self) -> Hashable:
        """The format of its caches: the same for all weights of one shape, dtype and device, packed or not."""
        packed = any(isinstance(part, SelfAttention) and part.qkv_proj is not None for part in self.modules())
        return self.backend, self.config, self.dtype, self.device, packed

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights, quantised, packed or neither."""
        return weight_bytes_of(self)

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> PagedKVCache:
        """Return an empty cache of ``num_rows`` sequences of up to ``capacity`` slots (rounded up to whole blocks).

        Raises:
            ValueError: it would exceed ``max_cache_bytes`` (None: half of the free memory).

        Cost: 2 * layers * KV heads * head size * bytes * rows * capacity.
        """
        leading, trailing, slots = cache_shape(self.config, capacity)
        return PagedKVCache.alone(leading, trailing, num_rows, slots, self.dtype, self.device, max_cache_bytes)

    @property
    def prefix_key(self) -> Hashable:
        """See ``specdec.contracts.PrefixOracle``; writing to the weights changes the key.

        Torch does not count what is written in place through ``.data`` (``part.data.copy_``), so the key misses it.

        Raises:
            ValueError: weights were made in inference mode, where torch does not record whether they were written to.
        """
        parts = tuple(self.parameters())
        if any(part.is_inference() for part in parts):
            raise ValueError(
                "prefix_sharing=True has to know when weights are written to, and torch does not count that for "
                "weights that were made inside torch.inference_mode(): load the eager model outside of it, where runs "
                "may still be inside, or use backend='native', or leave prefix_sharing False"
            )
        versions = tuple((id(part), part._version, part.data_ptr()) for part in parts)
        return self.backend, self.config, self.weight_type, self.dtype, self.device, versions

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        leading, trailing, _ = cache_shape(self.config, PAGE)
        return math.prod(leading) * math.prod(trailing) * PAGE * self.dtype.itemsize

    def new_memory(self, num_pages: int) -> TensorMemory:
        """Return an empty memory of ``num_pages`` pages, see ``specdec.cache.TensorMemory``."""
        leading, trailing, _ = cache_shape(self.config, PAGE)
        return TensorMemory(leading, trailing, num_pages, self.dtype, self.device)

    def cache_on(self, memory: TensorMemory, num_rows: int, capacity: int) -> PagedKVCache:
        """Return a cache of rows without pages, on a memory, see ``specdec.cache.PagedKVCache``."""
        return PagedKVCache(memory, num_rows, cache_shape(self.config, capacity)[2], is_seated=False)
