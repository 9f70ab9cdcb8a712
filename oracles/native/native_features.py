"""Keys, values and features as the native pass of a head reads and writes them."""

import torch
from torch import Tensor

from oracles.native import bindings
from oracles.native.keys_values import NativeCache, cache_bytes
from oracles.transformer.config import TransformerConfig
from specdec.cache import FeatureSlots, check_fits, free_memory


class NativeFeatureCache(FeatureSlots, NativeCache):
    """Hold keys and values as ``NativeCache`` does, and features in float32.

    Args:
        config, model, num_rows, capacity, max_bytes: see ``NativeCache``.

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
        slots, payload = cache_bytes(config, num_rows, capacity)
        check_fits(payload + 4 * num_rows * (slots + 1) * config.hidden_size, num_rows, slots, limit)
        super().__init__(config, model, num_rows, capacity, limit)
        self._make_features(config.hidden_size, torch.float32, host)
        self.struct.features, self.struct.known = self.features.data_ptr(), self.known.ctypes.data

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Keys, values and features."""
        return self.keys, self.values, self.features
