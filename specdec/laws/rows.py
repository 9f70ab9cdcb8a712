"""Some rows of a batch: taken out of tensors, and put back into them.

Places are indices into the batch, distinct and ascending. The host knows them, so that nothing goes to a device for
them: they become slices there.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def take(values: Tensor, places: NDArray[np.int64]) -> Tensor:
    """Return the entries of values ``[B, ...]`` at ``places`` ``[R]``: ``[R, ...]``.

    Cost: a copy of them; none if all are taken.
    """
    if len(places) == values.shape[0]:
        return values
    if values.is_cpu:
        return values[torch.from_numpy(places)]
    return torch.cat([values[:0], *(values[start:stop] for start, stop in _runs(places))])


def scatter_rows(values: Tensor, places: NDArray[np.int64], batch: int, fill: int = 0) -> Tensor:
    """Return values ``[R, ...]`` at ``places`` ``[R]`` of ``[batch, ...]``, ``fill`` elsewhere.

    Cost: O(size) of what is returned; none if the places are all rows.
    """
    if len(places) == batch:
        return values
    full = values.new_full((batch, *values.shape[1:]), fill)
    if values.is_cpu:
        full[torch.from_numpy(places)] = values
        return full
    parts, done, end = [], 0, 0
    for start, stop in _runs(places):
        parts += [full[end:start], values[done : done + stop - start]]
        done, end = done + stop - start, stop
    return torch.cat([*parts, full[end:]])


def _runs(places: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last place, plus 1, of each run of neighbours."""
    for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
        if run.size:
            yield int(run[0]), int(run[-1]) + 1
