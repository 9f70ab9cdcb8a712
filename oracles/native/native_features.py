"""Keys, values and features as the native pass of a head reads and writes them."""

import torch
from torch import Tensor

from oracles.native.arrivals import Arrivals
from oracles.native.keys_values import NativeCache, NativeMemory, page_bytes
from oracles.native.native_model import NativeModel
from specdec.cache import PAGE, FeatureSlots, check_fits, count_pages, free_memory
from specdec.contracts import Features


class NativeFeatureCache(FeatureSlots, NativeCache):
    """Hold keys and values as ``NativeCache`` does, and features in float32.

    Hidden states that arrive are features as soon as anybody reads those: the next call of compiled code makes them
    so, before it does what it was called for.

    Args:
        model: the head's.
        combiner: makes features of hidden states.
        num_rows, capacity: see ``NativeCache``.
        max_bytes: refuse to be larger (None: half of the memory that is free).

    Raises:
        ValueError: it would exceed ``max_bytes``.

    Cost: 4 * hidden size * rows * (capacity + 1) bytes beside keys and values; what arrived is kept until more does.
    """

    def __init__(
        self,
        model: NativeModel,
        combiner: NativeModel,
        num_rows: int,
        capacity: int,
        max_bytes: int | None = None,
    ) -> None:
        config, host = model.config, torch.device("cpu")
        limit = free_memory(host) // 2 if max_bytes is None else max_bytes
        per_row = count_pages(capacity)
        row_bytes = per_row * page_bytes(config) + 4 * (per_row * PAGE + 1) * config.hidden_size
        check_fits(num_rows * row_bytes, num_rows, per_row * PAGE, limit)
        super().__init__(NativeMemory(config, num_rows * per_row), model.struct, num_rows, capacity)
        self._native, self._arrivals = model, Arrivals(combiner)
        self._make_features(config.hidden_size, torch.float32, host)
        self.struct.features, self.struct.known = self.features.data_ptr(), self.known.ctypes.data
        self.struct.arrival = self._arrivals.address

    @property
    def features(self) -> Tensor:
        """``[num_rows, capacity + 1, H]``. Cost: a call, if hidden states have arrived that nobody has read yet."""
        self._settle()
        return self._features

    @features.setter
    def features(self, features: Tensor) -> None:
        self._features = features

    def arrive(self, features: Features) -> None:
        """Let hidden states be known.

        Raises:
            ValueError: see ``FeatureSlots.put`` and ``Arrivals.hold``.

        Cost: none but the books'; the next call of this cache projects them.
        """
        self.check_put(features.rows, features.starts, features.counts)
        self._settle()
        self._arrivals.hold(features)
        self.known[features.rows] = features.starts + features.counts

    def _settle(self) -> None:
        """Make features of what has arrived, if nobody has yet."""
        if self._arrivals.are_there:
            self._native.take_in(self)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Keys, values and features."""
        return *self.memory.tensors, self.features
