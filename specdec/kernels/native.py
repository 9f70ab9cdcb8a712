"""What computes laws and draws by compiled code, where numbers lie on the CPU in a type that it reads."""

from collections.abc import Callable
from ctypes import CDLL
from functools import cache
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import IntArray
from specdec.kernels.compiled import (
    NATIVE_DTYPES,
    NEUTRAL,
    NativeLaws,
    NativeUnavailable,
    NativeWalks,
    laws_library,
)
from specdec.kernels.draws import Streams
from specdec.kernels.reference import Filters, Kernels, Past
from specdec.laws import Laws, take
from specdec.system import warn_once
from specdec.transfers import on_device

_UNWARPED = np.array(list(NEUTRAL.values())).reshape(-1, 1)


@final
class NativeKernels(Kernels):
    """The same by compiled code on the CPU, for float32 and float64; elsewhere what it derives from.

    Args:
        built: the library; None: the one that is shipped.

    Raises:
        NativeUnavailable: this machine cannot have the library; the message says why.

    Guarantee: bits are the same on every supported machine, and those of a row do not depend on the other rows. Keyed
        draws are the reference's ids; a race can differ if two ids tie up to rounding.
    """

    name: ClassVar[str] = "native"
    are_compiled: ClassVar[bool] = True

    def __init__(self, built: CDLL | None = None) -> None:
        built = built or laws_library()
        self._laws, self.walks = NativeLaws(built), NativeWalks(built)

    def __reduce__(self) -> tuple[Callable[[], "NativeKernels"], tuple[()]]:
        return native_kernels, ()  # wherever they are unpickled, the library is that machine's own

    def laws(self, logits: Tensor, filters: Filters) -> Tensor:
        """Return the laws of logits ``[R, M, V]``. Cost: O(R M V) time, O(V) memory beside the laws."""
        return self._laws.laws(logits, filters.filters) if _is_read(logits) else super().laws(logits, filters)

    def penalise(self, logits: Tensor, tokens: Tensor, mask: Tensor, past: Past) -> None:
        """Apply penalties in place. Cost: O(L) a row with penalties and O(L + N) for each of its nodes."""
        if not _is_read(logits):
            super().penalise(logits, tokens, mask, past)
            return
        own = take(logits, past.rows)
        drafted, paths = take(tokens, past.rows), take(mask, past.rows)
        self._laws.penalise(own, past.ids, past.stands, past.produced, drafted, paths, past.strengths)
        if own is not logits:
            logits[on_device(past.rows, logits.device)] = own

    def draw(self, laws: Laws, k: int, streams: Streams, purpose: int, node: Any) -> Tensor:
        """Return draws along running sums."""
        if not _are_read(laws):
            return super().draw(laws, k, streams, purpose, node)
        return self._laws.draw(_table(laws), k, streams.path, streams.size, purpose, node)

    def race(self, laws: Laws, k: int, keys: IntArray, positions: IntArray, depth: Any) -> Tensor:
        """Return winners of races."""
        if not _are_read(laws):
            return super().race(laws, k, keys, positions, depth)
        return self._laws.race(_table(laws), k, keys.tobytes(), positions.tobytes(), keys.size, depth)

    def softmax(self, logits: Tensor) -> Tensor:
        """Return laws at temperature 1: the bits that a ``ChainWatch`` is told."""
        if not logits.is_cpu:
            return super().softmax(logits)
        return self._laws.laws(logits.double().reshape(1, -1, logits.shape[-1]), _UNWARPED).view_as(logits)

    def entropies(self, probs: Tensor) -> Tensor:
        """Return entropies: the bits that a ``ChainWatch`` is told."""
        if not _is_read(probs):
            return super().entropies(probs)
        return self._laws.entropies(probs.reshape(-1, probs.shape[-1])).view(probs.shape[:-1])


def _table(laws: Laws) -> tuple[Tensor, Tensor, Tensor]:
    return laws.table, laws.index, laws.point


def _is_read(numbers: Tensor) -> bool:
    return numbers.is_cpu and numbers.dtype in NATIVE_DTYPES


def _are_read(laws: Laws) -> bool:
    is_here = laws.index.is_cpu and laws.point.is_cpu
    return is_here and _is_read(laws.table) and laws.index.dtype == laws.point.dtype == torch.int64


@cache
def _make_once() -> NativeKernels | NativeUnavailable:
    """Return the compiled kernels, or why there are none: nobody tries twice in a process."""
    try:
        return NativeKernels()
    except NativeUnavailable as error:
        return error


def native_kernels() -> NativeKernels:
    """Return the compiled kernels, made once in a process.

    Raises:
        NativeUnavailable: this machine cannot have them.
    """
    made = _make_once()
    if isinstance(made, NativeUnavailable):
        raise made
    return made


REFERENCE = Kernels()


def best_kernels() -> Kernels:
    """Return the compiled kernels, or the reference, with one warning that says why, where they cannot be had."""
    try:
        return native_kernels()
    except NativeUnavailable as error:
        warn_once(f"specdec: laws and draws are torch operations, which take longer: {error}")
        return REFERENCE


def resolve_kernels(kernels: str | None, device: torch.device) -> Kernels:
    """Return kernels by name, "native" or "reference", or the best to be had for None.

    Args:
        kernels: their name.
        device: of the oracle; what lies on a device is computed there by torch operations, whatever the kernels.

    Raises:
        ValueError: there are none of that name, this machine cannot have compiled ones, or the oracle lies elsewhere.
    """
    if kernels is None:
        return best_kernels()
    if kernels == "reference":
        return REFERENCE
    if kernels != "native":
        raise ValueError(f"kernels must be 'native', 'reference' or None (native where it can be had), not {kernels!r}")
    if device.type != "cpu":
        raise ValueError(f"kernels='native' computes on the CPU, and the oracle is on {device}; leave kernels out")
    try:
        return native_kernels()
    except NativeUnavailable as error:
        raise ValueError(f"kernels='native' cannot be had here: {error}; use kernels='reference'") from error
