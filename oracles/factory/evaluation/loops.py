"""Text that goes round in circles."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def loop_mask(tokens: ArrayLike, longest_block: int = 16, least_repeats: int = 3) -> NDArray[np.bool_]:
    """Return which tokens stand in a loop.

    Token i is in a loop if a stretch of tokens around it is one block of at most ``longest_block`` tokens, said
    ``least_repeats`` times or more in a row.

    Args:
        tokens: ids ``[T]``.
        longest_block: at least 1.
        least_repeats: at least 2.

    Returns:
        ``[T]`` bool.

    Raises:
        ValueError: an argument out of range.

    Cost: O(T longest_block).
    """
    if longest_block < 1 or least_repeats < 2:
        raise ValueError(
            f"longest_block must be at least 1 and least_repeats at least 2, got {longest_block} and {least_repeats}"
        )
    ids = np.asarray(tokens)
    mask = np.zeros(len(ids), dtype=np.bool_)
    for size in range(1, min(longest_block, len(ids) // least_repeats) + 1):
        # A run of n tokens, each equal to the one a block later, is a stretch of n + size tokens that repeats a block.
        same = np.concatenate([[False], ids[size:] == ids[:-size], [False]])
        runs = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2)
        for start, stop in runs[runs[:, 1] - runs[:, 0] >= (least_repeats - 1) * size]:
            mask[start : stop + size] = True
    return mask


def loop_columns(texts: Sequence[Sequence[int]]) -> dict[str, str]:
    """Return how many texts and tokens there are, and which shares of them stand in loops, for a row of a table."""
    masks = [loop_mask(tokens) for tokens in texts]
    num_tokens = sum(len(mask) for mask in masks)
    return {
        "texts": f"{len(masks):,}",
        "tokens": f"{num_tokens:,}",
        "tokens in loops": f"{sum(int(mask.sum()) for mask in masks) / num_tokens:.2%}",
        "texts with a loop": f"{sum(bool(mask.any()) for mask in masks) / len(masks):.1%}",
    }
