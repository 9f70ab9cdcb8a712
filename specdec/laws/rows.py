"""Some rows of a batch: taken out of tensors, and put back into them. Places are indices into the batch."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specdec.transfers import on_device


def take(values: Tensor, places: NDArray[np.int64]) -> Tensor:
    """Return the entries at ``places`` (distinct, ascending) of the first dimension.

    Cost: a copy of them; none if all are taken.
    """
    return values if len(places) == values.shape[0] else values[on_device(places, values.device)]


def spread(values: Tensor, places: NDArray[np.int64], batch: int, fill: int = 0) -> Tensor:
    """Return values ``[R, ...]`` at ``places`` ``[R]`` of ``[batch, ...]``, ``fill`` elsewhere.

    Cost: O(size) of what is returned; none if the places are all.
    """
    if len(places) == batch:
        return values
    full = values.new_full((batch, *values.shape[1:]), fill)
    full[on_device(places, values.device)] = values
    return full
