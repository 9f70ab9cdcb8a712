"""Chains that follow a pass within its call, and who is asked between their tokens."""

import ctypes

import numpy as np
import torch

from oracles.native import bindings
from oracles.native.adjusting import adjusting
from oracles.native.keys_values import NativeCache
from oracles.native.memory import packed_ids
from oracles.native.model import NativeModel
from oracles.parts import check_call
from specdec.contracts import Adjustments, ChainWatch, Float32Array, IntArray
from specdec.native import integers
from specdec.transfers import largest


class _Asker:
    """Tell a watch what the compiled chains find, from within their call.

    Args:
        watch: who is told.
        limits: ``[B]`` what the chains read.
        steps: the largest of them.

    No exception passes through compiled code. It clears the limits before it asks, so that a call which writes none
    ends the chains; ``check`` then raises in their caller's stead.
    """

    def __init__(self, watch: ChainWatch, limits: IntArray, steps: int) -> None:
        self.watch, self.limits, self.standing = watch, limits, limits.copy()
        self.entropies = torch.zeros(len(limits), dtype=torch.float64, device="cpu")
        self.confidences = torch.zeros(len(limits), steps, dtype=torch.float64, device="cpu")
        self.failure: BaseException | None = None

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
        """Raise what the watch raised; KeyboardInterrupt if a call was interrupted before it could keep anything."""
        if self.failure is not None:
            raise self.failure
        if not np.array_equal(self.limits, self.standing):
            raise KeyboardInterrupt

    def sign(self, following: bindings.Following) -> None:
        """Have chains ask for what the watch reads."""
        following.ask = bindings.Ask(self)
        if self.watch.reads_entropy:
            following.entropies = self.entropies.data_ptr()
        if self.watch.reads_confidence:
            following.confidences = self.confidences.data_ptr()


def follow(
    model: NativeModel,
    cache: NativeCache,
    tokens: IntArray,
    num_nodes: IntArray,
    rows: IntArray,
    limits: IntArray,
    watch: ChainWatch | None,
    draws: bindings.Draws | None = None,
    adjustments: Adjustments | None = None,
) -> tuple[IntArray, Float32Array]:
    """Return ids and peaks of chains, greedy or drawn; see ``specdec.contracts.ChainingOracle``.

    Args:
        model: its layers.
        cache, tokens, num_nodes, rows, limits, watch, adjustments: see there.
        draws: what ids are drawn by; None: the likeliest.
    """
    (batch, width), steps = tokens.shape, largest(limits)
    ids_given, counts_given = packed_ids(tokens), packed_ids(num_nodes, (batch,))
    # One piece of memory for all: limits, counts, ids, and behind them the peaks.
    memory, numbers = integers(batch * (2 + 2 * steps))
    count = batch * steps
    wanted, kept, rest = numbers[:batch], numbers[batch : 2 * batch], numbers[2 * batch :]
    ids, peaks = rest[:count].reshape(batch, steps), rest[count:].view(np.float32)[:count].reshape(batch, steps)
    wanted[:], kept[:] = limits, num_nodes
    counts = kept + np.maximum(limits - 1, 0)
    end = largest(cache.lengths[rows] + counts)
    check_call(model.config, end - 1, "last", ())
    cache.reserve(rows, counts)
    at = ctypes.addressof(memory)
    places = at + 8 * batch, at + 16 * batch, at + 16 * batch + 8 * count
    following = bindings.Following(at, steps, 0, *places, None if draws is None else ctypes.addressof(draws))
    if (adjusted := adjusting(adjustments, batch)) is not None:
        following.adjustments = ctypes.addressof(adjusted)
    asker = None
    if watch is not None and (watch.reads_entropy or watch.reads_confidence):
        asker = _Asker(watch, wanted, steps)
        asker.sign(following)
    model.run(
        cache,
        batch=batch,
        width=width,
        tokens=ids_given,
        num_nodes=counts_given,
        rows=rows,
        layers=(0, model.config.num_layers),
        want="last",
        end=end,
        entry="specdec_chains",
        rest=(ctypes.addressof(following),),
    )
    if asker is not None:
        asker.check()
    cache.commit(rows, None, kept)
    if asker is not None:
        ids, peaks = ids[:, : wanted.max()], peaks[:, : following.begun]
    return ids, peaks
