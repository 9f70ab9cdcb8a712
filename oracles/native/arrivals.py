"""Hidden states on their way to a head in compiled code: the next call that reads the head's cache takes them in."""

import ctypes

import torch
from torch import Tensor

from oracles.native import bindings
from oracles.native.host_memory import to_bytes
from oracles.native.native_model import NativeModel
from specdec.contracts import Features


class Arrivals:
    """Hold what has arrived for a cache until compiled code has taken it in.

    Args:
        combiner: makes one feature of the hidden states of a position.

    Attributes:
        address: of the structure that the cache's own points to.
    """

    def __init__(self, combiner: NativeModel) -> None:
        self._struct = bindings.Arrival(combiner=combiner.address)
        self.address = ctypes.addressof(self._struct)
        self._combiner = combiner
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
