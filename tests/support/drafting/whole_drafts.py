"""Drafts that a model makes by itself in one call, for tests that compare them with tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import IntArray


def as_tensors(
    drafts: Callable[..., Any], tokens: Tensor, counts: Tensor, cache: Any, rows: IntArray, *rest: Any
) -> list[Any]:
    """Return as tensors what a method of ``ChainingOracle`` drafts after ``tokens[b, : counts[b]]``, so far unread."""
    first = cache.lengths[rows]
    ids = np.full((len(rows), int(first.max()) + tokens.shape[1] + 3), -1)  # nobody reads what surrounds them
    for row, start, new in zip(ids, first, tokens.numpy(), strict=True):
        row[start : start + len(new)] = new
    found = drafts(ids, first + counts.numpy(), cache, rows, *rest)
    return [None if array is None else torch.from_numpy(array) for array in found]
