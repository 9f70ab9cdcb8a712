"""Tensors on the host whose addresses compiled code can use."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.transfers import HOST

_LINE = 64  # bytes of a cache line
INT64, FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)


def floats(*shape: int) -> Tensor:
    """Return uninitialised float32 numbers ``[*shape]`` on the host."""
    return torch.empty(*shape, dtype=torch.float32, device=HOST)


def zeros(*shape: int) -> Tensor:
    """Return float32 zeros ``[*shape]`` on the host, on huge pages if there are many."""
    return _zero_bytes(4 * math.prod(shape)).view(torch.float32).view(shape)


def to_bytes(numbers: NDArray[Any], dtype: np.dtype[Any] = INT64) -> bytes:
    """Return the numbers of an array ``[...]`` as bytes, which are cheaper to pass than its address."""
    return np.asarray(numbers, dtype=dtype).tobytes()


def to_host(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...] | None = None) -> Tensor:
    """Return a tensor contiguous on the host.

    Args:
        tensor: ``[...]`` given by the caller of a pass.
        dtype: integers are converted to it; floats must have it.
        shape: the shape that it must have; None: any.

    Raises:
        ValueError: it has another shape, kind or device.
    """
    if shape is not None and tensor.shape != shape:
        raise ValueError(f"a native pass was given a tensor of shape {tuple(tensor.shape)} where it needs {shape}")
    is_convertible = tensor.dtype == dtype or not (tensor.is_floating_point() or dtype.is_floating_point)
    if not (tensor.is_cpu and is_convertible):
        raise ValueError(f"a native pass needs {dtype} on the cpu, and was given {tensor.dtype} on {tensor.device}")
    return tensor if tensor.dtype == dtype and tensor.is_contiguous() else tensor.to(dtype).contiguous()


class Slabs:
    """Lay tensors side by side in large slabs of memory on huge pages.

    A layer's weights are smaller than a huge page. Alone, each would lie on small pages, whose addresses a processor
    looks up again in every pass.
    """

    SIZE = 2**25  # bytes of a slab, unless a tensor is larger
    LEAST = 2**16  # bytes of the smallest tensor that is moved

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8, device=HOST)

    def place(self, tensor: Tensor) -> Tensor:
        """Return a tensor ``[...]``, contiguous.

        A large one is returned as a copy that begins at a cache line and keeps its slab alive.
        """
        if tensor.nbytes < self.LEAST:
            return tensor.contiguous()
        size = -(-tensor.nbytes // _LINE) * _LINE
        if size > len(self._left):
            self._left = _zero_bytes(max(size, self.SIZE))
        place, self._left = self._left[: tensor.nbytes], self._left[size:]
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _zero_bytes(size: int) -> Tensor:
    """Return zeros ``[size]`` that begin at a cache line, on huge pages if there are many."""
    # numpy asks the kernel for huge pages, torch does not.
    memory = torch.from_numpy(np.zeros(size + _LINE - 1, dtype=np.uint8))
    return memory[-memory.data_ptr() % _LINE :][:size]
