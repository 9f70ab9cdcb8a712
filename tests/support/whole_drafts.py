"""Drafts that a model makes by itself in one call, for tests that compare them with tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def as_tensors(drafts: Callable[..., Any], tokens: Tensor, num_nodes: Tensor, *rest: Any) -> list[Any]:
    """Return as tensors what a method of ``ChainingOracle`` drafts after tokens."""
    found = drafts(tokens.numpy(), num_nodes.numpy(), *rest)
    return [None if array is None else torch.from_numpy(array) for array in found]
