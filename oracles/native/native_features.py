"""The caches of heads in compiled code, which hidden states arrive for."""

from dataclasses import replace

import torch
from torch import Tensor

from oracles.native.arrivals import Arrivals
from oracles.native.keys_values import NativeCache, NativeMemory
from oracles.native.native_model import NativeModel
from specdec.cache import FeatureSlots
from specdec.contracts import Features, IntArray


class _ArrivalCache(NativeCache):
    """Hold keys and values; hidden states that arrived are taken in by the next call of compiled code.

    Args:
        model: the head's.
        arrivals: what waits.
        memory, num_rows, capacity: see ``NativeCache``.
    """

    def __init__(
        self, model: NativeModel, arrivals: Arrivals, memory: NativeMemory, num_rows: int, capacity: int
    ) -> None:
        super().__init__(memory, model.struct, num_rows, capacity)
        self._native, self._arrivals, self.struct.arrival = model, arrivals, arrivals.address

    def _settle(self) -> None:
        """Take in what has arrived, if nobody has yet."""
        if self._arrivals.are_there:
            self._native.take_in(self)

    def reset(self, rows: IntArray) -> None:
        self._settle()
        super().reset(rows)


class NativeContextCache(_ArrivalCache):
    """Hold keys and values that a head's layers made of hidden states alone.

    Args:
        model: the head's.
        arrivals: whose reader it is.
        num_rows, capacity: see ``NativeCache``.
        max_bytes: refuse to be larger (None: half of the memory that is free).

    Raises:
        ValueError: it would exceed ``max_bytes``.

    Cost: see ``NativeMemory``; what arrived is kept until more does.
    """

    def __init__(
        self, model: NativeModel, arrivals: Arrivals, num_rows: int, capacity: int, max_bytes: int | None = None
    ) -> None:
        memory = NativeMemory.for_rows(model.config, num_rows, capacity, max_bytes)
        super().__init__(model, arrivals, memory, num_rows, capacity)

    def arrive(self, features: Features) -> None:
        """Let hidden states of positions after those that stand be known.

        Raises:
            ValueError: there is no room; see ``Arrivals.hold``.

        Cost: none but the books'; the next call of this cache makes keys and values of them.
        """
        self._settle()
        rows, counts = features.rows, features.counts
        self._arrivals.hold(replace(features, starts=self.reserve(rows, counts)))
        self.commit(rows, None, counts)


class NativeFeatureCache(FeatureSlots, _ArrivalCache):
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
        self, model: NativeModel, combiner: NativeModel, num_rows: int, capacity: int, max_bytes: int | None = None
    ) -> None:
        size = model.config.hidden_size
        memory = NativeMemory.for_rows(model.config, num_rows, capacity, max_bytes, feature_bytes=4 * size)
        super().__init__(model, Arrivals(combiner), memory, num_rows, capacity)
        self._make_features(size, torch.float32, torch.device("cpu"))
        self.struct.features, self.struct.known = self.features.data_ptr(), self.known.ctypes.data

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

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Keys, values and features."""
        return *self.memory.tensors, self.features
