"""Text that repeats itself."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

# A loop is a block of at most this many tokens, repeated at least this often in a row.
LONGEST_BLOCK, LEAST_REPEATS = 16, 3


def loop_mask(tokens: ArrayLike) -> NDArray[np.bool_]:
    """Return which tokens ``[T]`` are in a loop, ``[T]`` bool: in a stretch that repeats one block.

    Cost: O(T) for each of ``LONGEST_BLOCK`` lengths of a block.
    """
    ids = np.asarray(tokens)
    mask = np.zeros(len(ids), dtype=np.bool_)
    for size in range(1, min(LONGEST_BLOCK, len(ids) // LEAST_REPEATS) + 1):
        # A run of n tokens, each equal to the one a block later, is a stretch of n + size tokens that repeats a block.
        same = np.concatenate([[False], ids[size:] == ids[:-size], [False]])
        runs = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2)
        for start, stop in runs[runs[:, 1] - runs[:, 0] >= (LEAST_REPEATS - 1) * size]:
            mask[start : stop + size] = True
    return mask


def loop_columns(texts: Sequence[Sequence[int]]) -> dict[str, str]:
    """Return how many texts and tokens there are, and which shares of them are in loops, for a row of a table."""
    masks = [loop_mask(tokens) for tokens in texts]
    num_tokens = sum(len(mask) for mask in masks)
    return {
        "texts": f"{len(masks):,}",
        "tokens": f"{num_tokens:,}",
        "tokens in loops": f"{sum(int(mask.sum()) for mask in masks) / max(num_tokens, 1):.2%}",
        "texts with a loop": f"{sum(bool(mask.any()) for mask in masks) / max(len(masks), 1):.1%}",
    }
