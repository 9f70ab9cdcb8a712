"""A CUDA device that is not there: its tensors hold values, what crosses is counted, what a real one refuses fails.

A tensor "on" the device is a wrapper of one on the host. Whatever torch does to it is seen as an operation here, done
on the wrapped tensors and wrapped again. Factory functions of torch do not ask for a CUDA device where a fake mode is
active: this one passes for such a mode.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specdec import transfers

CUDA = torch.device("cuda:0")
# What makes the host wait for the device, or gives a shape that depends on what a tensor holds.
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero")
# They take indices from the host, and copy them to the device by themselves.
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")


_WHOLE = slice(None)


def _taken(x: Tensor, index: Any) -> Tensor:
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
            if part != _WHOLE:
                x = torch.ops.aten.slice(x, at, *part.indices(x.shape[at]))
        elif isinstance(part, Tensor):
            tensors[at] = part
        else:
            x, at = x.select(at, int(part)), at - 1
        at += 1
    return torch.ops.aten.index(x, [tensors.get(dim) for dim in range(at)]) if tensors else x


_BEHIND = {
    "__getitem__": _taken,
    "__invert__": torch.ops.aten.bitwise_not,
    "contiguous": torch.ops.aten.contiguous,
    "copy_": torch.ops.aten.copy_,
    "masked_select": torch.ops.aten.masked_select,
    "nonzero": torch.ops.aten.nonzero,
}


@contextmanager
def _no_device() -> Iterator[None]:
    """Keep a real CUDA device of the same name out of it: its pinned memory, and its choice of kernels."""
    is_none = mock.patch("torch.cuda.is_available", return_value=False)
    with is_none, mock.patch.object(transfers, "_WAYS", transfers._Ways()), sdpa_kernel(SDPBackend.MATH):
        yield


class _There(Tensor):
    """A tensor on the device."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> "_There":
        layout: Any = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        made: _There = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=CUDA, **layout)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} outside of the emulated device: a tensor of it got out")

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"on the device: {self.held!r}"


class Emulated(TorchDispatchMode):
    """The device, and what was seen of it.

    Attributes:
        uploads, downloads: copies to the device and back.
        waits: what else made the host wait, by name.
        mixed: operations that met a single number of the host beside tensors of the device, which may be a copy.
    """

    _mode_key: ClassVar[Any] = torch._C._TorchDispatchModeKey.FAKE

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here: calls need no guard against it, which takes a tenth of the time."""
        return False

    def reset(self) -> None:
        """Count from 0 again."""
        self.uploads = self.downloads = 0
        self.waits: Counter[str] = Counter()
        self.mixed: Counter[str] = Counter()

    @property
    def seen(self) -> tuple[int, int, dict[str, int]]:
        """Uploads, downloads, waits."""
        return self.uploads, self.downloads, dict(self.waits)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs, tensors = function.overloadpacket.__name__, kwargs or {}, []
        given, named = _opened(args, tensors), {key: _opened(value, tensors) for key, value in kwargs.items()}
        is_there = any(isinstance(tensor, _There) for tensor in tensors)
        asked = kwargs.get("device")
        ends_there = is_there if asked is None else torch.device(asked).type == "cuda"
        if name in ("copy_", "_to_copy"):
            starts_there = isinstance(args[1 if name == "copy_" else 0], _There)
            ends_there = isinstance(args[0], _There) if name == "copy_" else ends_there
            self.uploads += ends_there and not starts_there
            self.downloads += starts_there and not ends_there
        elif is_there:
            self._check_places(name, tensors)
        if is_there:
            self._note_waits(name, args)
        if asked is not None:
            named["device"] = torch.device("cpu")
        named.pop("pin_memory", None)
        made = function(*given, **named)
        if not ends_there or name in ("_local_scalar_dense", "equal", "is_nonzero"):
            return made
        return _wrapped(made, {id(tensor.held): tensor for tensor in tensors if isinstance(tensor, _There)})

    def _check_places(self, name: str, tensors: list[Tensor]) -> None:
        """Fail as CUDA does if places are mixed: single numbers of the host go along, indices are copied."""
        elsewhere = [tensor for tensor in tensors if not isinstance(tensor, _There)]
        if elsewhere and name in _INDEXING:
            self.uploads += len(elsewhere)
        elif any(tensor.dim() for tensor in elsewhere):
            raise RuntimeError(f"{name} was given tensors on different devices")
        elif elsewhere:
            self.mixed[name] += 1

    def _note_waits(self, name: str, args: Any) -> None:
        if name in WAITING:
            self.waits[name] += 1
        if name in _INDEXING:
            masks = [index for index in args[1] if index is not None and index.dtype == torch.bool]
            self.waits["index by a mask"] += len(masks)
            self.waits += Counter()  # without zeros


def _opened(value: Any, tensors: list[Tensor]) -> Any:
    """Return an argument with what its tensors hold in their place; put these into the list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.held if isinstance(value, _There) else value
    return type(value)([_opened(part, tensors) for part in value]) if isinstance(value, (tuple, list)) else value


def _wrapped(value: Any, known: dict[int, Tensor]) -> Any:
    """Return results on the device: tensors known there, by what they hold, or new ones."""
    if isinstance(value, Tensor):
        return known[id(value)] if id(value) in known else _There(value)
    return type(value)([_wrapped(part, known) for part in value]) if isinstance(value, (tuple, list)) else value


_NUMBERS: dict[str, Any] = {"__int__": int, "__float__": float, "__bool__": bool, "__index__": int, "item": lambda x: x}


class _Methods(TorchFunctionMode):
    """Call the operations behind those few methods that builds of torch without CUDA refuse for such a device."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if args and isinstance(args[0], _There):
            if name in ("tolist", "numpy", "__array__"):
                raise TypeError(f"{name}() of a tensor on the device")
            if name in _NUMBERS:
                return _NUMBERS[name](torch.ops.aten._local_scalar_dense(args[0]))
            if name == "__setitem__":
                return _put(*args)
            function = _BEHIND.get(name, function)
        return function(*args, **(kwargs or {}))


def _put(x: Tensor, index: Any, value: Any) -> None:
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, Tensor) for part in parts):
        ops = torch.ops.aten
        # What is cut by slices, numbers and new dimensions is a view; the indices that are tensors write into it.
        rest = [slice(None) if isinstance(part, Tensor) else part for part in parts]
        kept = [part for part in parts if not isinstance(part, int)]
        indices = [part if isinstance(part, Tensor) else None for part in kept]
        given = value if isinstance(value, Tensor) else ops.full([], value, dtype=x.dtype, device=x.device)
        ops.index_put_(_taken(x, tuple(rest)), indices, given)
    elif isinstance(value, Tensor):
        torch.ops.aten.copy_(_taken(x, index), value)
    else:
        torch.ops.aten.fill_(_taken(x, index), value)


@contextmanager
def emulated_device() -> Iterator[Emulated]:
    """Let tensors lie on ``CUDA``, with values; yield what is seen of it."""
    with _no_device(), Emulated() as device, _Methods():
        yield device
