"""The caches of heads in compiled code: hidden states arrive, and the next call that reads the cache takes them in."""

import ctypes
from dataclasses import replace

import torch
from torch import Tensor

from oracles.native import bindings
from oracles.native.host_memory import to_bytes
from oracles.native.keys_values import NativeCache, NativeMemory
from oracles.native.native_model import NativeModel
from specdec.cache import FeatureSlots
from specdec.contracts import Features, IntArray


class _ArrivalCache(NativeCache):
    """Hold keys and values, and arrived hidden states until compiled code has taken them in.

    Args:
        model: the head's.
        combiner: makes one feature from the hidden states of a position.
        norm: of features, before the head's layers make keys and values from them; None: the cache keeps features.
        num_rows, capacity: see ``NativeCache``.
        max_bytes: the largest size allowed (None: half of the free memory).
        feature_bytes: bytes of a slot's features.

    Raises:
        ValueError: it would exceed ``max_bytes``.
    """

    def __init__(
        self,
        model: NativeModel,
        combiner: NativeModel,
        norm: bindings.Norm | None,
        num_rows: int,
        capacity: int,
        max_bytes: int | None = None,
        feature_bytes: int = 0,
    ) -> None:
        memory = NativeMemory.for_rows(model.config, num_rows, capacity, max_bytes, feature_bytes)
        super().__init__(memory, model.struct, num_rows, capacity)
        self._native, self._combiner, self._norm = model, combiner, norm
        self._arrival = bindings.Arrival(combiner=combiner.address)
        self._kept: tuple[object, ...] = ()
        if norm is not None:
            self._arrival.reader, self._arrival.norm = model.address, ctypes.addressof(norm)
        self.struct.arrival = ctypes.addressof(self._arrival)

    def _settle(self) -> None:
        """Take in what has arrived, unless a call has done so."""
        if self._arrival.batch:
            self._native.take_in(self)

    def reset(self, rows: IntArray) -> None:
        self._settle()
        super().reset(rows)

    def _hold(self, features: Features) -> None:
        """Hold hidden states of positions that have room, in place of those that were taken in.

        Raises:
            ValueError: they have another width, or a column lies outside them.

        Cost: contiguous float32 numbers on the host are not copied.
        """
        layers = _side_by_side(features.scored)
        width, most = layers[0].shape[1], max(features.counts.tolist(), default=0)
        columns, wide = features.columns, layers[0].shape[-1] * len(layers)
        if wide != self._combiner.struct.hidden:
            raise ValueError(f"hidden states are {wide} wide, and the head reads {self._combiner.struct.hidden}")
        if columns is not None and not set(columns.ravel().tolist()) <= set(range(width)):
            raise ValueError(f"columns {columns.tolist()} name nodes that a pass of {width} does not have")
        if most > (width if columns is None else columns.shape[1]):
            raise ValueError(f"counts {features.counts.tolist()} are more than the {width} positions that were scored")
        struct, places = self._arrival, (ctypes.c_void_p * len(layers))(*(layer.data_ptr() for layer in layers))
        struct.states, struct.num_states, struct.row_stride = ctypes.addressof(places), len(layers), layers[0].stride(0)
        struct.rows, struct.starts = to_bytes(features.rows), to_bytes(features.starts)
        struct.counts, struct.width = to_bytes(features.counts), width
        struct.columns, struct.most = (None, 0) if columns is None else (to_bytes(columns), columns.shape[1])
        self._kept, struct.batch = (layers, places), len(features.rows)


class NativeContextCache(_ArrivalCache):
    """Hold keys and values that a head's layers made from hidden states alone.

    Args:
        model: the head's.
        combiner: makes features from hidden states.
        norm: of the features.
        num_rows, capacity: see ``NativeCache``.
        max_bytes: the largest size allowed (None: half of the free memory).

    Raises:
        ValueError: it would exceed ``max_bytes``.

    Cost: see ``NativeMemory``; arrived hidden states are kept until the next ones arrive.
    """

    def arrive(self, features: Features) -> None:
        """Take hidden states of the positions after the committed ones.

        Raises:
            ValueError: there is no room, they have another width, or a column lies outside them.

        Cost: only bookkeeping; the next call of this cache makes keys and values from them.
        """
        self._settle()
        rows, counts = features.rows, features.counts
        self._hold(replace(features, starts=self.reserve(rows, counts)))
        self.commit(rows, None, counts)


class NativeFeatureCache(FeatureSlots, _ArrivalCache):
    """Hold keys and values as ``NativeCache`` does, and features in float32.

    Arrived hidden states become features before anything reads these: the next call of compiled code projects them
    before it does its own work.

    Args:
        model: the head's.
        combiner: makes features from hidden states.
        num_rows, capacity: see ``NativeCache``.
        max_bytes: the largest size allowed (None: half of the free memory).

    Raises:
        ValueError: it would exceed ``max_bytes``.

    Cost: 4 * hidden size * rows * (capacity + 1) bytes besides keys and values; arrived hidden states are kept until
        the next ones arrive.
    """

    def __init__(
        self, model: NativeModel, combiner: NativeModel, num_rows: int, capacity: int, max_bytes: int | None = None
    ) -> None:
        size = model.config.hidden_size
        super().__init__(model, combiner, None, num_rows, capacity, max_bytes, feature_bytes=4 * size)
        self._make_features(size, torch.float32, torch.device("cpu"))
        self.struct.features, self.struct.known = self.features.data_ptr(), self.known.ctypes.data

    @property
    def features(self) -> Tensor:
        """``[num_rows, capacity + 1, H]``. Cost: a call, if hidden states have arrived that no call has taken in."""
        self._settle()
        return self._features

    @features.setter
    def features(self, features: Tensor) -> None:
        """Keep others, ``[num_rows, capacity + 1, H]``."""
        self._features = features

    def arrive(self, features: Features) -> None:
        """Take hidden states of positions.

        Raises:
            ValueError: see ``FeatureSlots.put``; they have another width, or a column lies outside them.

        Cost: only bookkeeping; the next call of this cache projects them.
        """
        self.check_put(features.rows, features.starts, features.counts)
        self._settle()
        self._hold(features)
        self.known[features.rows] = features.starts + features.counts

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Keys and values, see ``NativeMemory``, and features ``[num_rows, capacity + 1, H]``."""
        return *self.memory.tensors, self.features


def _side_by_side(layers: tuple[Tensor, ...]) -> list[Tensor]:
    """Return layers ``[B, W, D]`` as float32 on the host, a row's positions side by side, with equal row strides."""
    here = [layer if layer.is_cpu and layer.dtype is torch.float32 else layer.cpu().float() for layer in layers]
    alike = (here[0].stride(0), here[0].shape[-1], 1)
    return here if all(layer.stride() == alike for layer in here) else [layer.contiguous() for layer in here]
