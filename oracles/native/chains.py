"""Chains that follow a pass within its call, and the watch that is asked between their tokens."""

import ctypes
from functools import lru_cache

import numpy as np
import torch

from oracles.native import bindings
from oracles.native.call_inputs import adjustments_of, draws_of
from oracles.native.keys_values import NativeCache
from oracles.native.native_model import NativeModel
from specdec.contracts import Adjustments, ChainWatch, Draws, Float32Array, IntArray
from specdec.kernels.compiled import place


class _Asker:
    """Tell a watch what the compiled chains find, from within their call.

    Args:
        watch: the function that is told.
        room: memory that the chains read and write; its structure asks from now on.
        steps: the largest of its limits.

    No exception passes through compiled code. It clears the limits before it asks, so a call that writes none,
    because the watch failed or an interrupt came first, ends the chains; ``check`` then raises for their caller.
    """

    def __init__(self, watch: ChainWatch, room: "_Room", steps: int) -> None:
        self.watch, self.limits, self.standing = watch, room.limits, room.limits.copy()
        self.entropies, self.confidences = np.zeros(len(room.limits)), np.zeros((len(room.limits), steps))
        self.failure: BaseException | None = None
        room.following.ask = bindings.Ask(self)
        if watch.reads_entropy:
            room.following.entropies = place(self.entropies)
        if watch.reads_confidence:
            room.following.confidences = place(self.confidences)

    def __call__(self, step: int, is_drawn: int) -> None:
        try:
            if is_drawn:
                self.watch.after(step, self.confidences[:, : step + 1])
            else:
                self.watch.before(step, self.entropies)
            np.minimum(self.standing, self.watch.limits, out=self.standing)
            self.limits[:] = self.standing
        except BaseException as failure:
            self.failure = failure

    def check(self) -> None:
        """Raise what the watch raised; KeyboardInterrupt if an interrupt came before the call could keep anything."""
        if self.failure is not None:
            raise self.failure
        if not np.array_equal(self.limits, self.standing):
            raise KeyboardInterrupt


class _Room:
    """Memory for the results of chains of one size, with the structure that tells compiled code where it lies.

    Calls without a watch borrow a free room and give it back: a new one costs more than a short chain's Python.

    Attributes:
        memory: ``limits``, the same number of entries for compiled code, ``ids``, ``peaks``.
        limits: ``[B]`` how many ids each row wants.
        ids, peaks: ``[B, N]`` what was found.
        following: the structure that says where they lie; its address.
    """

    def __init__(self, batch: int, steps: int) -> None:
        count = batch * steps
        self.memory = torch.zeros(2 * (batch + count), dtype=torch.int64, device="cpu")
        numbers = self.memory.numpy()
        self.limits, found = numbers[:batch], numbers[2 * batch :]
        self.ids = found[:count].reshape(batch, steps)
        self.peaks = found[count:].view(np.float32)[:count].reshape(batch, steps)
        at = self.memory.data_ptr()
        self.following = bindings.Following(at, steps, 0, at + 8 * batch, at + 16 * batch, at + 8 * (2 * batch + count))
        self.address = ctypes.addressof(self.following)


@lru_cache(maxsize=64)
def _rooms(batch: int, steps: int) -> list[_Room]:
    """Return the free rooms of a size."""
    return []


def follow(
    model: NativeModel,
    cache: NativeCache,
    entry: str,
    start: bindings.Text | bindings.Blocks,
    ends: IntArray,
    rows: IntArray,
    limits: IntArray,
    watch: ChainWatch | None,
    draws: Draws | None,
    adjustments: Adjustments | None,
) -> tuple[IntArray, Float32Array, Float32Array | None]:
    """Return ids, peaks and, if ids are drawn, laws of chains; see ``specdec.contracts.ChainingOracle``.

    Args:
        model: its layers.
        cache, rows, limits, watch, adjustments: see there.
        entry: names the function of the library that begins with ``start``.
        start: a text whose last ids the chains follow, or blocks that they run along.
        ends: ``[B]`` the positions that are reached before they begin.
        draws: how ids are drawn; None: the likeliest ids.
    """
    batch, steps = len(rows), max(limits.tolist(), default=0)
    laws = how = None
    if draws is not None and draws.keys is not None:
        laws = np.empty((batch, steps, model.struct.vocabulary), dtype=np.float32)
        how = draws_of("chains", batch, draws, laws)
    watch = watch if watch is not None and (watch.reads_entropy or watch.reads_confidence) else None
    rooms = _rooms(batch, steps) if watch is None else []
    try:
        room = rooms.pop()
    except IndexError:  # see ``NativeModel._run``
        room = _Room(batch, steps)
    adjusted = None if adjustments is None else adjustments_of(adjustments, batch)
    room.limits[:], room.following.begun = limits, 0
    room.following.draws = None if how is None else ctypes.addressof(how)
    room.following.adjustments = None if adjusted is None else ctypes.addressof(adjusted)
    asker = None if watch is None else _Asker(watch, room, steps)
    try:
        places, check = (ctypes.addressof(start), room.address), None if asker is None else asker.check
        model.draft(entry, cache, rows, ends, steps, places, check)
        if asker is None:
            return room.ids.copy(), room.peaks.copy(), laws
        drafted = int(room.limits.max())
        found = None if laws is None else laws[:, :drafted]
        return room.ids[:, :drafted], room.peaks[:, : room.following.begun], found
    finally:
        rooms.append(room)
