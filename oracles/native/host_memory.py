"""Tensors on the host whose addresses compiled code may take."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_HOST = torch.device("cpu")
INT64, FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)


def floats(*shape: int) -> Tensor:
    """Return float32 numbers on the host, not yet written, whatever torch's defaults are."""
    return torch.empty(*shape, dtype=torch.float32, device=_HOST)


def to_bytes(numbers: NDArray[Any], dtype: np.dtype[Any] = INT64) -> bytes:
    """Return an array's numbers as bytes, which cost less to hand over than its address."""
    return np.asarray(numbers, dtype=dtype).tobytes()


def ids_to_bytes(ids: NDArray[Any], shape: tuple[int, ...] | None = None) -> bytes:
    """Return ids or counts of the host as bytes.

    Args:
        ids: given by the caller of a pass.
        shape: they must have; None: any.

    Raises:
        ValueError: they have another shape, are no integers, or no array.
    """
    if not isinstance(ids, np.ndarray):
        raise ValueError(
            f"a native pass needs ids and counts as arrays of the host, and was given a {type(ids).__name__}"
        )
    if (shape is not None and ids.shape != shape) or ids.dtype.kind not in "iu":
        wanted = "integers" if shape is None else f"integers of shape {shape}"
        raise ValueError(f"a native pass needs {wanted}, and was given {ids.dtype} of shape {ids.shape}")
    return to_bytes(ids)


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
