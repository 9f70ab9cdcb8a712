"""Tensors on the host whose addresses compiled code may take."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_HOST = torch.device("cpu")
INT64, FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)


def floats(*shape: int) -> Tensor:
    """Return float32 numbers on the host, not yet written."""
    return torch.empty(*shape, dtype=torch.float32, device=_HOST)


def integers(*shape: int) -> Tensor:
    """Return int64 numbers on the host, not yet written."""
    return torch.empty(*shape, dtype=torch.int64, device=_HOST)


def to_bytes(numbers: NDArray[Any], dtype: np.dtype[Any] = INT64) -> bytes:
    """Return an array's numbers as bytes, which cost less to hand over than its address."""
    return np.asarray(numbers, dtype=dtype).tobytes()


def to_host(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...] | None = None) -> Tensor:
    """Return a tensor contiguous on the host.

    Args:
        tensor: given by the caller of a pass.
        dtype: integers are converted to it; floats must have it.
        shape: it must have; None: any.

    Raises:
        ValueError: it has another shape, kind or device.
    """
    if shape is not None and tensor.shape != shape:
        raise ValueError(f"a native pass was given a tensor of shape {tuple(tensor.shape)} where it needs {shape}")
    is_convertible = tensor.dtype == dtype or not (tensor.is_floating_point() or dtype.is_floating_point)
    if not (tensor.is_cpu and is_convertible):
        raise ValueError(f"a native pass needs {dtype} on the cpu, and was given {tensor.dtype} on {tensor.device}")
    return tensor if tensor.dtype == dtype and tensor.is_contiguous() else tensor.to(dtype).contiguous()
