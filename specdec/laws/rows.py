"""Some rows of a batch: taken out of tensors, and put back into them."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def take(values: Tensor, rows: NDArray[np.int64]) -> Tensor:
    """Return the entries ``rows`` (distinct, ascending) of the first dimension; all of them cost nothing."""
    return values if len(rows) == values.shape[0] else values[torch.from_numpy(rows).to(values.device)]


def spread(values: Tensor, rows: NDArray[np.int64], batch: int, fill: int = 0) -> Tensor:
    """Return values ``[R, ...]`` at the places ``rows`` of ``[batch, ...]``, ``fill`` elsewhere."""
    if len(rows) == batch:
        return values
    full = values.new_full((batch, *values.shape[1:]), fill)
    full[torch.from_numpy(rows).to(values.device)] = values
    return full
