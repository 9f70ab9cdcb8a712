"""The caches of heads in compiled code, which hidden states arrive for: the next call that reads one takes them in."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from oracles.native import bindings
from oracles.native.host_memory import to_bytes
from oracles.native.keys_values import NativeCache, NativeMemory
from oracles.native.native_model import NativeModel
from oracles.transformer.blocks import Norm
from oracles.transformer.linear import Linear
from specdec.cache import FeatureSlots
from specdec.contracts import Features, IntArray


class _ArrivalCache(NativeCache):
    """Hold keys and values, and hidden states that have arrived until compiled code has taken them in.

    Args:
        model: the head's.
        combiner: makes one feature of the hidden states of a position.
        norm: what features pass before the head's layers keep keys and values of them; None: the cache keeps features.
        num_rows, capacity: see ``NativeCache``.
        max_bytes: refuse to be larger (None: half of the memory that is free).
        feature_bytes: of the features of a slot.

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
        """Take in what has arrived, if nobody has yet."""
        if self._arrival.batch:
            self._native.take_in(self)

    def reset(self, rows: IntArray) -> None:
        self._settle()
        super().reset(rows)

    def _hold(self, features: Features) -> None:
        """Hold hidden states of positions that there is room for, in place of those that were taken in.

        Raises:
            ValueError: they are of another width, or a column is none of theirs.

        Cost: no copy of float32 numbers of the host that lie side by side.
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
    """Hold keys and values that a head's layers made of hidden states alone.

    Args:
        model: the head's.
        combiner: makes features of hidden states.
        norm: what these pass.
        num_rows, capacity: see ``NativeCache``.
        max_bytes: refuse to be larger (None: half of the memory that is free).

    Raises:
        ValueError: it would exceed ``max_bytes``.

    Cost: see ``NativeMemory``; what arrived is kept until more does.
    """

    def arrive(self, features: Features) -> None:
        """Let hidden states of positions after those that stand be known.

        Raises:
            ValueError: there is no room, they are of another width, or a column is none of theirs.

        Cost: none but the books'; the next call of this cache makes keys and values of them.
        """
        self._settle()
        rows, counts = features.rows, features.counts
        self._hold(replace(features, starts=self.reserve(rows, counts)))
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
        super().__init__(model, combiner, None, num_rows, capacity, max_bytes, feature_bytes=4 * size)
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
            ValueError: see ``FeatureSlots.put``; they are of another width, or a column is none of theirs.

        Cost: none but the books'; the next call of this cache projects them.
        """
        self.check_put(features.rows, features.starts, features.counts)
        self._settle()
        self._hold(features)
        self.known[features.rows] = features.starts + features.counts

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Keys, values and features."""
        return *self.memory.tensors, self.features


def _side_by_side(layers: tuple[Tensor, ...]) -> list[Tensor]:
    """Return layers ``[B, W, D]`` as float32 of the host, a row's positions side by side, rows alike in all of them."""
    here = [layer if layer.is_cpu and layer.dtype is torch.float32 else layer.cpu().float() for layer in layers]
    alike = (here[0].stride(0), here[0].shape[-1], 1)
    return here if all(layer.stride() == alike for layer in here) else [layer.contiguous() for layer in here]


def combiner_of(model: NativeModel, fc: Linear, norm: Norm | None = None, parts: Sequence[Norm] = ()) -> NativeModel:
    """Return what projects hidden states that stand side by side to features: a model that is nothing but a head.

    Args:
        model: keeps the weights.
        fc: projects.
        norm: of all of them together, before that.
        parts: of each by itself, before that.
    """
    combiner = model.projection(fc, norm)
    combiner.norm_parts([model.weights.norm(part) for part in parts])
    return combiner
