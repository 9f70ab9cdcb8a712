"""A model's memory of a batch of sequences: preallocated slots, per-row lengths, rollback that moves nothing."""

import math
import os
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import IntArray
from specdec.transfers import on_device

_GROUPS = Path("/sys/fs/cgroup")
# A container's memory: the files with its limit, its use and its statistics, and which of these counts file pages that
# can be dropped.
CONTAINERS = (
    (_GROUPS / "memory.max", _GROUPS / "memory.current", _GROUPS / "memory.stat", "inactive_file"),
    (
        _GROUPS / "memory/memory.limit_in_bytes",
        _GROUPS / "memory/memory.usage_in_bytes",
        _GROUPS / "memory/memory.stat",
        "total_inactive_file",
    ),
)


def free_memory(device: torch.device) -> int:
    """Return the bytes that can still be allocated on ``device``.

    On the host no more than a container leaves; all memory if the system does not say what is free, and no limit if it
    hides that too.
    """
    if device.type == "cuda":
        # Torch keeps what was freed for its next tensors, and the device counts it as taken.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return min(int(fields["MemAvailable"].split()[0]) * 1024, _left_in_container())
    if not hasattr(os, "sysconf"):  # it is Unix's
        return sys.maxsize
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_in_container() -> int:
    """Return the bytes that the control group of a container leaves; if none limits them, more than there are."""
    for limit, used, stat, cached in CONTAINERS:
        with suppress(OSError, KeyError, ValueError):  # absent, or "max"
            counts = dict(line.split() for line in stat.read_text().splitlines())
            return int(limit.read_text()) - int(used.read_text()) + int(counts[cached])
    return sys.maxsize


def check_fits(needed: int, num_rows: int, capacity: int, max_bytes: int | None, device: torch.device) -> None:
    """Refuse a cache that would exceed a limit.

    Args:
        needed: its bytes.
        num_rows, capacity: its size, for the message.
        max_bytes: the limit; None: half of what is free on ``device``.

    Raises:
        ValueError: it would; names the argument to change.
    """
    limit = free_memory(device) // 2 if max_bytes is None else max_bytes
    if needed > limit:
        raise ValueError(
            f"a cache of {num_rows} rows and {capacity} slots takes {needed:,} bytes, more than "
            f"max_cache_bytes = {limit:,}: lower batch_size or the context, or raise max_cache_bytes"
        )


class SlotCache(ABC):
    """Keep the books of rows of slots; a subclass holds their contents.

    Slot s of a row with ``s < lengths[row]`` holds what the model keeps of the row's token s. A scoring call writes its
    nodes after the prefix (node i to slot ``lengths[row] + i``); ``commit`` lets some of them stand. Rows are
    independent: they join, leave and are reused without touching one another.

    Args:
        num_rows: rows.
        capacity: slots per row.

    Attributes:
        lengths: ``[num_rows]`` slots that stand, on the host; read-only.

    Guarantee: what a predecessor left in a row, NaN included, cannot reach the next occupant: ``reset`` leaves none of
        the written slots as it was.
    """

    def __init__(self, num_rows: int, capacity: int) -> None:
        self.num_rows, self.capacity = num_rows, capacity
        # Compiled code may be told where these lie: they stay the same arrays.
        self._lengths: IntArray = np.zeros(num_rows, dtype=np.int64)
        self._written: IntArray = np.zeros(num_rows, dtype=np.int64)
        self._shared: IntArray = np.zeros(num_rows, dtype=np.int64)  # slots of each row that others may read
        self.lengths: IntArray = self._lengths.view()
        self.lengths.flags.writeable = False

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors ``[...]`` that hold the slots, laid out as the subclass says."""

    @property
    def bytes(self) -> int:
        """Memory of the payload."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @abstractmethod
    def _gather(self, rows: IntArray, path: Tensor, num_kept: IntArray) -> None:
        """Move the nodes ``path[b, : num_kept[b]]`` after the prefix of each row, in that order."""

    def reserve(self, rows: IntArray, num_slots: int | IntArray, first: int = 0) -> IntArray:
        """Announce that a scoring call writes slots ``first .. num_slots - 1`` after the prefix of each of ``rows``.

        Args:
            rows: ``[B]`` distinct.
            num_slots: of every row, or of each ``[B]``.
            first: those below it were written before.

        Returns:
            ``[B]`` the rows' lengths.

        Raises:
            ValueError: a row lacks the room, or nothing was ever written to the slots below ``first``.
        """
        lengths = self._lengths[rows]
        if first and (not 0 < first < np.min(num_slots) or (self._written[rows] < lengths + first).any()):
            raise ValueError(
                f"first={first} says that so many of {num_slots} nodes are in the cache: score them before the others"
            )
        ends = lengths + num_slots
        if max(ends.tolist(), default=0) > self.capacity:
            row = int(rows[ends.argmax()])
            raise ValueError(
                f"row {row} holds {self._lengths[row]} tokens and cannot take {ends.max() - self._lengths[row]} more: "
                f"its capacity is {self.capacity}; give new_cache a larger capacity"
            )
        self._written[rows] = np.maximum(self._written[rows], ends)
        return lengths

    def commit(self, rows: IntArray, path: Tensor | None, num_kept: IntArray) -> None:
        """Keep the first ``num_kept[b]`` nodes of ``path[b]`` of the last scoring call, root first.

        Args:
            rows: ``[B]`` distinct.
            path: ``[B, M]`` node indices, increasing along a row; None for chains.
            num_kept: ``[B]``.

        Raises:
            ValueError: nodes that were never scored, or more than ``path`` holds.
        """
        ends = self._lengths[rows] + num_kept
        if min(num_kept.tolist(), default=0) < 0 or max((ends - self._written[rows]).tolist(), default=0) > 0:
            raise ValueError(f"num_kept {num_kept.tolist()} asks for nodes that were never scored on rows {rows}")
        if path is not None and int(num_kept.max(initial=0)) > path.shape[1]:
            raise ValueError(f"num_kept {num_kept.tolist()} asks for more nodes than path {tuple(path.shape)} holds")
        if path is not None:
            self._gather(rows, path, num_kept)
        self._lengths[rows] = ends

    def truncate(self, rows: IntArray, lengths: IntArray) -> None:
        """Roll ``rows`` back to ``lengths`` ``[B]``.

        Raises:
            ValueError: a length is negative or longer than what stands, or others may read what follows it.
        """
        shared, standing = self._shared[rows], self._lengths[rows]
        cut, added = lengths - shared, lengths - standing
        if min(cut.tolist(), default=0) < 0 or max(added.tolist(), default=0) > 0:
            raise ValueError(
                f"cannot cut rows {rows.tolist()} of lengths {standing.tolist()} to {lengths.tolist()}: give no "
                f"more than these, and no less than the {shared.tolist()} that others may read"
            )
        self._lengths[rows] = lengths

    @abstractmethod
    def _empty(self, rows: IntArray) -> None:
        """Empty ``rows`` of what was written to them."""

    def reset(self, rows: IntArray) -> None:
        """Empty ``rows`` ``[B]`` for new occupants. Cost: clears what was written to them."""
        self._empty(rows)
        self._lengths[rows] = 0
        self._written[rows] = 0


class KVCache(SlotCache):
    """Hold a payload per row and slot in one tensor, the slots of a row side by side.

    Args:
        shape: of the payload, a rows dimension and a slots dimension among others.
        row_dim, slot_dim: where these are.
        dtype, device: of the payload.
        max_bytes: refuse to be larger (None: half of the memory that is free).
        payload: zeros of that kind, whose size was checked; None: they are allocated.

    Raises:
        ValueError: the payload would exceed ``max_bytes``.

    Cost: ``bytes``, allocated once. ``commit`` of a chain, ``truncate``: a length; of a tree: one gather of the path.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        row_dim: int,
        slot_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        max_bytes: int | None = None,
        payload: Tensor | None = None,
    ) -> None:
        if payload is None:
            check_fits(math.prod(shape) * dtype.itemsize, shape[row_dim], shape[slot_dim], max_bytes, device)
            payload = torch.zeros(shape, dtype=dtype, device=device)
        super().__init__(shape[row_dim], shape[slot_dim])
        self._payload = payload
        self._row_dim, self._slot_dim = row_dim, slot_dim

    @property
    def payload(self) -> Tensor:
        """``[...]``, of the ``shape`` that was asked for, with rows at ``row_dim`` and slots at ``slot_dim``."""
        return self._payload

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The payload alone, see ``KVCache.payload``."""
        return (self.payload,)

    def _gather(self, rows: IntArray, path: Tensor, num_kept: IntArray) -> None:
        self._move(np.stack([rows, self._lengths[rows], num_kept]), path[:, : int(num_kept.max(initial=0))])

    def _move(self, which: IntArray, path: Tensor) -> None:
        """Move nodes as ``move_kept`` does."""
        move_kept(self.payload, self._row_dim, self._slot_dim, which, path)

    def _empty(self, rows: IntArray) -> None:
        used = int(self._written[rows].max(initial=0))
        if used:
            # A masked slot has weight 0, but 0 * NaN is NaN: the number itself must go, not only its weight.
            self._clear(rows, used)

    def _clear(self, rows: IntArray, used: int) -> None:
        """Fill the first ``used`` slots of these rows with zeros."""
        self.payload.narrow(self._slot_dim, 0, used).index_fill_(self._row_dim, on_device(rows, self.payload.device), 0)


def move_kept(payload: Tensor, row_dim: int, slot_dim: int, which: IntArray, path: Tensor) -> None:
    """Move the nodes of paths in some rows to the first slots after what stands there.

    Args:
        payload: rows and slots among other dimensions.
        row_dim, slot_dim: where these are.
        which: ``[3, B]`` on the host: the rows, their lengths, how many nodes of each path are kept.
        path: ``[B, W]`` nodes.
    """
    device, capacity = payload.device, payload.shape[slot_dim]
    column = torch.arange(path.shape[1], device=device)
    at, start, kept = on_device(which, device).unsqueeze(2).unbind(0)
    # A node beyond those that are kept stays where it is, so that no row needs a shape of its own.
    source = start + torch.where(column < kept, on_device(path, device), column)
    slots = payload.movedim((row_dim, slot_dim), (0, 1))
    # Indexing copies before it writes, so source and target may overlap.
    slots.index_put_((at, (start + column).clamp(max=capacity - 1)), slots[at, source.clamp(max=capacity - 1)])
