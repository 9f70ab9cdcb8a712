"""Hidden states on their way to a head in compiled code: the next call that reads the head's cache takes them in."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from oracles.native import bindings
from oracles.native.host_memory import to_bytes
from oracles.native.native_model import NativeModel
from oracles.transformer.blocks import Norm
from oracles.transformer.linear import Linear
from specdec.contracts import Features


class Arrivals:
    """Hold what has arrived for a cache until compiled code has taken it in.

    Args:
        combiner: makes one feature of the hidden states of a position.
        reader: its layers keep keys and values of features; None: the cache keeps features.
        norm: what features pass before they do.

    Attributes:
        address: of the structure that the cache's own points to.
    """

    def __init__(
        self, combiner: NativeModel, reader: NativeModel | None = None, norm: bindings.Norm | None = None
    ) -> None:
        self._struct = bindings.Arrival(combiner=combiner.address)
        if reader is not None and norm is not None:
            self._struct.reader, self._struct.norm = reader.address, ctypes.addressof(norm)
        self.address = ctypes.addressof(self._struct)
        self._combiner, self._reader = combiner, (reader, norm)
        self._kept: tuple[object, ...] = ()

    @property
    def are_there(self) -> bool:
        """Whether something waits to be taken in."""
        return bool(self._struct.batch)

    def hold(self, features: Features) -> None:
        """Hold hidden states, in place of those that were taken in.

        Args:
            features: of positions that the cache has room for.

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
        struct, places = self._struct, (ctypes.c_void_p * len(layers))(*(layer.data_ptr() for layer in layers))
        struct.states, struct.num_states, struct.row_stride = ctypes.addressof(places), len(layers), layers[0].stride(0)
        struct.rows, struct.starts = to_bytes(features.rows), to_bytes(features.starts)
        struct.counts, struct.width = to_bytes(features.counts), width
        struct.columns, struct.most = (None, 0) if columns is None else (to_bytes(columns), columns.shape[1])
        self._kept, struct.batch = (layers, places), len(features.rows)


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
