"""The one way between the host and a device: what crosses does so here, packed, and is counted.

What a step needs on the device is staged before the pass and goes there with the pass's own numbers, in one copy from
pinned memory that nobody waits for; what the host must know of the step comes back in one copy, with an event to wait
for. On the CPU nothing crosses: arrays and tensors are views of each other.

Staging is about when, not about what: a value that was not staged is brought by a copy of its own when it is asked for.
"""

import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HOST = torch.device("cpu")

Value = Tensor | NDArray[Any]


@dataclass
class Crossings:
    """What one thread brought to a device and back, and how long it left the device without work.

    Attributes:
        uploads: copies from the host to the device.
        downloads: copies back; the host waited for each.
        idle_seconds: from the end of every such wait, when the device has done all that this thread asked of it, to the
            next copy.
        waited: when the last wait ended; None: a copy came after it, or nobody has waited.
    """

    uploads: int = 0
    downloads: int = 0
    idle_seconds: float = 0.0
    waited: float | None = None

    def begin_copy(self) -> None:
        """Book the time without work that ends here."""
        if self.waited is not None:
            self.idle_seconds += time.perf_counter() - self.waited
            self.waited = None

    def end_wait(self) -> None:
        """Begin a time without work."""
        self.waited = time.perf_counter()


class StagedValues:
    """Values that go to a device with the next copy there, and are found there until a ``with`` block of it ends.

    Args:
        values: on the host; nobody writes to them.
    """

    def __init__(self, values: Iterable[Value]) -> None:
        self.values = {id(value): value for value in values}
        self.there: dict[int, Tensor] | None = None  # it is still on the host

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.values:  # NOTHING, which every step of the host enters, has none
            self.values, self.there = {}, {}


NOTHING = StagedValues(())


class PendingDownload:
    """A tensor that comes to the host with the next ``all_on_host`` of its device, or when it is asked for.

    Args:
        values: int64; nobody writes to it before it is asked for.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.here: NDArray[Any] | None = None
        if not values.is_cpu:
            _WAYS.to(values.device).pending.append(weakref.ref(self))

    def on_host(self) -> NDArray[Any]:
        """Return its numbers, ``[...]`` int64 of its shape. Cost: a copy that is waited for, if they have not come."""
        if self.here is None:
            self.here = on_host(self.values)
        return self.here


class _Way:
    """One thread's way to one device.

    Every copy has a piece of pinned memory of its own, which the allocator gives to nobody else before the copy out of
    it has run: so the host never waits, and never writes to what is still to be copied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.crossings = device, Crossings()
        self._uploads: list[weakref.ref[StagedValues]] = []
        self.pending: list[weakref.ref[PendingDownload]] = []
        # A test's tensors can lie on a device that the machine does not have; nothing can be pinned for it.
        self._pinned = device.type == "cuda" and torch.cuda.is_available()

    def add(self, upload: StagedValues) -> None:
        """Have an upload go with the next copy."""
        self._uploads = [other for other in self._uploads if other() is not None]
        self._uploads.append(weakref.ref(upload))

    @property
    def uploads(self) -> list[StagedValues]:
        """The uploads that are alive, the latest first."""
        return [upload for known in reversed(self._uploads) if (upload := known()) is not None]

    def take_pending(self) -> list[PendingDownload]:
        """Return what is pending and has not come, and forget it."""
        known, self.pending = [reference() for reference in self.pending], []
        return [coming for coming in known if coming is not None and coming.here is None]

    def send(self, own: Tensor) -> Tensor:
        """Return int64 numbers ``[N]`` on the device; all that waits goes along."""
        waiting = [upload for upload in self.uploads if upload.there is None]
        values = [value for upload in waiting for value in upload.values.values()]
        parts = [own, *map(_words, values)]
        staged = self._on_host(sum(part.numel() for part in parts))
        self.crossings.begin_copy()
        there = torch.cat(parts, out=staged).to(self.device, non_blocking=True)
        self.crossings.uploads += 1
        first, *others = torch.split(there, [part.numel() for part in parts])
        arrived = {id(value): _unpack(part, value) for part, value in zip(others, values, strict=True)}
        for upload in waiting:
            upload.there = {key: arrived[key] for key in upload.values}
        return first

    def find(self, value: Value) -> Tensor | None:
        """Return what was staged of a value, which goes now if it waits; None: it was not staged."""
        for upload in self.uploads:
            if id(value) in upload.values:
                if upload.there is None:
                    self.send(torch.empty(0, dtype=torch.int64, device=HOST))
                return cast(dict[int, Tensor], upload.there)[id(value)]
        return None

    def bring(self, value: Value) -> Tensor:
        """Return a value on the device, by a copy of its own unless it was staged."""
        found = self.find(value)
        if found is not None:
            return found
        tensor = _tensor(value)
        if tensor.dtype in _PACKED:
            return _unpack(self.send(_words(tensor)), tensor)
        self.crossings.begin_copy()
        self.crossings.uploads += 1
        return (tensor.pin_memory() if self._pinned else tensor).to(self.device, non_blocking=True)

    def fetch(self, values: Tensor) -> Tensor:
        """Return on the host what lies on the device, once it has arrived."""
        self.crossings.begin_copy()
        self.crossings.downloads += 1
        landed = self._land(values) if self._pinned else values.cpu()
        self.crossings.end_wait()
        return landed

    def _land(self, values: Tensor) -> Tensor:
        landing = torch.empty(values.shape, dtype=values.dtype, device=HOST, pin_memory=True)
        landing.copy_(values, non_blocking=True)
        arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record(torch.cuda.current_stream(self.device))
        arrival.synchronize()
        return landing.clone()

    def _on_host(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int64, device=HOST, pin_memory=self._pinned)


class _Ways(threading.local):
    """The ways of one thread, by device."""

    def __init__(self) -> None:
        self._ways: dict[torch.device, _Way] = {}

    def to(self, device: torch.device) -> _Way:
        if device not in self._ways:
            here = device if device.index is not None else torch.device(device.type, _current(device))
            self._ways[device] = self._ways.setdefault(here, _Way(here))
        return self._ways[device]


def _current(device: torch.device) -> int:
    """Return the number of the device that a type without a number means."""
    return torch.cuda.current_device() if device.type == "cuda" and torch.cuda.is_available() else 0


_WAYS = _Ways()


def crossings(device: torch.device) -> Crossings:
    """Return what this thread has brought to a device and back so far; it goes on counting."""
    return _WAYS.to(device).crossings


def stage(values: Iterable[Value | None], device: torch.device) -> StagedValues:
    """Have values go to a device with the next copy there.

    Args:
        values: int64, bool or float64, which nobody writes to; those that lie on the device already, and None, stay.
        device: where they go.

    Returns:
        An upload: ``on_device`` finds the values there while it lives.
    """
    if device.type == "cpu":
        return NOTHING
    upload = StagedValues(value for value in values if value is not None and _is_packed(value))
    _WAYS.to(device).add(upload)
    return upload


def send(numbers: Tensor, device: torch.device) -> Tensor:
    """Return int64 numbers ``[N]`` of the host on a device, with all that was staged for it, in one copy."""
    return numbers if device.type == "cpu" else _WAYS.to(device).send(numbers)


def on_device(value: Value, device: torch.device) -> Tensor:
    """Return a value on a device: itself, if it lies there; else what was staged of it, or a copy.

    Args:
        value: ``[...]``, an array or tensor on the host, or a tensor on any device.
        device: of the oracle or model that reads it.

    Returns:
        A tensor of the same shape and dtype.
    """
    if device.type == "cpu":
        tensor = _tensor(value)
        return tensor if tensor.is_cpu else _WAYS.to(tensor.device).fetch(tensor)
    if _is_on_host(value):
        return _WAYS.to(device).bring(value)
    tensor = _tensor(value)
    return tensor if tensor.device == device else tensor.to(device)  # from device to device: the host has no part in it


def together_on_device(*values: Value, device: torch.device) -> list[Tensor]:
    """Return values ``[...]`` on a device, each as by ``on_device``; what must go there goes in one copy."""
    with stage(values, device):
        return [on_device(value, device) for value in values]


def on_host(tensor: Tensor) -> NDArray[Any]:
    """Return the numbers ``[...]`` of a tensor on the host, in its shape and dtype.

    They are a view if they lie there, else a copy that is waited for. Gradients stay behind.
    """
    tensor = tensor.detach()
    return tensor.numpy() if tensor.is_cpu else _WAYS.to(tensor.device).fetch(tensor).numpy()


def all_on_host(columns: Mapping[str, Tensor | None]) -> dict[str, NDArray[Any]]:
    """Bring tensors to the host, those of a device in one copy.

    Args:
        columns: tensors ``[...]`` of any shapes, all of which that are not on the host on one device; None: no tensor.

    Returns:
        Arrays of the same shapes, copies: their owner may write into the tensors again. Floats from a device are
        float64. Columns that are None are left out, and so are gradients.
    """
    given = {name: column.detach() for name, column in columns.items() if column is not None}
    there = {name: column for name, column in given.items() if not column.is_cpu}
    arrays: dict[str, NDArray[Any]] = {}
    if there:
        way = _WAYS.to(next(iter(there.values())).device)
        pending = way.take_pending()
        brought = [*there.values(), *(coming.values for coming in pending)]
        words = torch.split(way.fetch(torch.cat([_words(column) for column in brought])), [x.numel() for x in brought])
        found = [_unpack(part, column).numpy() for part, column in zip(words, brought, strict=True)]
        arrays = dict(zip(there, found, strict=False))
        for coming, array in zip(pending, found[len(there) :], strict=True):
            coming.here = array
    return arrays | {name: column.numpy().copy() for name, column in given.items() if column.is_cpu}


def together_on_host(*values: Tensor) -> Sequence[Tensor]:
    """Return tensors ``[...]`` on the host: themselves, if they all lie there, else copies that came together."""
    if all(value.is_cpu for value in values):
        return values
    arrays = all_on_host({str(i): value for i, value in enumerate(values)})
    return [torch.from_numpy(arrays[str(i)]) for i in range(len(values))]


# What is packed into one copy; all else has one of its own.
_PACKED = (torch.int64, torch.bool, torch.float64)


def _is_packed(value: Value) -> bool:
    return _is_on_host(value) and _tensor(value).dtype in _PACKED


def _is_on_host(value: Value) -> bool:
    return not isinstance(value, Tensor) or value.is_cpu


def _tensor(value: Value) -> Tensor:
    return value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))


def _words(value: Value) -> Tensor:
    """Return a value as int64, one after the other: the bits of floats, the values of all else."""
    column = _tensor(value)
    words = column.double().view(torch.int64) if column.is_floating_point() else column.long()
    return words.reshape(-1)


def _unpack(words: Tensor, value: Value) -> Tensor:
    """Return what ``_words`` packed of a value, wherever they lie: floats are float64, integers int64."""
    like = _tensor(value)
    shaped = words.view(like.shape)
    if like.is_floating_point():
        return shaped.view(torch.float64)
    return shaped.bool() if like.dtype == torch.bool else shaped
