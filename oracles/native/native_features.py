"""Keys, values and features as the native pass of a head reads and writes them."""

import torch
from torch import Tensor

from oracles.native import bindings
from oracles.native.keys_values import NativeCache, NativeMemory, page_bytes
from oracles.transformer.config import TransformerConfig
from specdec.cache import PAGE, FeatureSlots, check_fits, count_pages, free_memory


class NativeFeatureCache(FeatureSlots, NativeCache):
    """Hold keys and values as ``NativeCache`` does, and features in float32.

    Args:
        config: the model's shape.
        model, num_rows, capacity: see ``NativeCache``.
        max_bytes: refuse to be larger (None: half of the memory that is free).

    Raises:
        ValueError: it would exceed ``max_bytes``.

    Cost: 4 * hidden size * rows * (capacity + 1) bytes beside keys and values.
    """

    def __init__(
        self,
        config: TransformerConfig,
        model: bindings.Model,
        num_rows: int,
        capacity: int,
        max_bytes: int | None = None,
    ) -> None:
        host = torch.device("cpu")
        limit = free_memory(host) // 2 if max_bytes is None else max_bytes
        per_row = count_pages(capacity)
        row_bytes = per_row * page_bytes(config) + 4 * (per_row * PAGE + 1) * config.hidden_size
        check_fits(num_rows * row_bytes, num_rows, per_row * PAGE, limit)
        super().__init__(NativeMemory(config, num_rows * per_row), model, num_rows, capacity)
        self._make_features(config.hidden_size, torch.float32, host)
        self.struct.features, self.struct.known = self.features.data_ptr(), self.known.ctypes.data

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Keys, values and features."""
        return *self.memory.tensors, self.features
