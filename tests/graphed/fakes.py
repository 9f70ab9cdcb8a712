"""Tensors on a CUDA device that is not there: they have a place, a shape and a type, and no values."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from oracles.graphed import Graph

CUDA = torch.device("cuda:0")


class _Operations(TorchFunctionMode):
    """Call the operations behind those few methods that builds of torch without CUDA refuse for such a device."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return BEHIND.get(function.__name__, function)(*args, **(kwargs or {}))


def taken(x: Tensor, index: Any) -> Tensor:
    parts = list(index) if isinstance(index, tuple) else [index]
    for at, part in enumerate(parts):
        if part is Ellipsis:
            missing = x.dim() - sum(other is not None for other in parts) + 1
            parts[at : at + 1] = [slice(None)] * missing
            break
    at, tensors = 0, {}
    for part in parts:
        if part is None:
            x = x.unsqueeze(at)
        elif isinstance(part, slice):
            x = torch.ops.aten.slice(x, at, *part.indices(x.shape[at]))
        elif isinstance(part, Tensor):
            tensors[at] = part
        else:
            x, at = x.select(at, int(part)), at - 1
        at += 1
    return torch.ops.aten.index(x, [tensors.get(dim) for dim in range(at)]) if tensors else x


BEHIND = {
    "__getitem__": taken,
    "__invert__": torch.ops.aten.bitwise_not,
    "contiguous": torch.ops.aten.contiguous,
    "copy_": torch.ops.aten.copy_,
}


@contextmanager
def no_device() -> Iterator[None]:
    """Have torch say that there is no CUDA device, also where there is one: what stands for a device pins no memory."""
    with mock.patch("torch.cuda.is_available", return_value=False):
        yield


@contextmanager
def fakes() -> Iterator[None]:
    """Make all tensors fake ones, which may lie on any device."""
    with no_device(), FakeTensorMode(allow_non_fake_inputs=True), _Operations():
        yield


PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [5], [4, 4, 5, 4, 4, 5, 4], [7, 8, 9]]


class Recorded:
    """Make graphs that compute again from the very tensors that the captured pass read."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, compute: Callable[[], tuple[torch.Tensor, ...]]) -> Graph:
        self.made += 1
        outputs = tuple(torch.full_like(output, float("nan")) for output in compute())

        def replay() -> None:
            with torch.no_grad():
                for output, new in zip(outputs, compute(), strict=True):
                    output.copy_(new)

        return Graph(replay, outputs)
