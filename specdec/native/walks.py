"""Walks through drafts in one call of compiled code: ``walks.h`` and ``judging.h`` in Python."""

import ctypes
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec.native.laws import NATIVE_DTYPES, Table, once
from specdec.native.memory import Integers, place

_I64, _POINTER = ctypes.c_int64, ctypes.c_void_p
_DRAFTS = Struct("14q")  # the structure `Drafts`
_SCORED = Struct("6qd4q")  # the structure `Scored`
_NUMBERS = 6  # written for each row, before what is written for each node


class Drafted(NamedTuple):
    """Drafts as they were scored, the root first: W nodes, contiguous on the CPU.

    Attributes:
        tokens: ``[B, W]`` int64.
        parents: ``[B, W]`` int64, -1 for the root; None for chains.
        sizes: ``[B]`` int64, how many nodes are real, the root among them.
        is_scout: ``[B, W-1]`` bool; None: no node.
        source: ``[B, W-1]`` int64; None: all are 0.
        num_sources: how many there are.
        undefined: ``[B, S]`` int64; a number below ``never`` is a fault. None: no fault.
        never: see ``undefined``.
    """

    tokens: Tensor
    parents: Tensor | None
    sizes: Tensor
    is_scout: Tensor | None
    source: Tensor | None
    num_sources: int
    undefined: Tensor | None
    never: int


class Limits(NamedTuple):
    """What rows may do and what ends them, as the bytes of arrays.

    Attributes:
        max_depth, max_nodes: ``[B]`` int64, without the root.
        ignores_eos: ``[B]`` bool.
        eos_ids: int64.
        ending: the code of a row that meets one of them.
    """

    max_depth: bytes
    max_nodes: bytes
    ignores_eos: bytes
    eos_ids: bytes
    ending: int


class Walked(NamedTuple):
    """What walks made of drafts.

    Attributes:
        numbers: ``[6, B]``, each by its name below.
        block: ``[B, W]`` accepted tokens and the next one, -1 beyond.
        trees: ``[B, W]`` depths of nodes, and ``[B, W]`` paths from the root to the stop, 0 beyond; None for chains.
    """

    numbers: Integers
    block: Integers
    trees: tuple[Integers, Integers] | None

    def _row(self, at: int) -> Integers:
        row: Integers = self.numbers[at]
        return row

    @property
    def num_nodes(self) -> Integers:
        """``[B]`` nodes without the root."""
        return self._row(0)

    @property
    def stops(self) -> Integers:
        """``[B]`` nodes where the walks stopped."""
        return self._row(1)

    @property
    def accepted(self) -> Integers:
        """``[B]`` how many tokens are accepted."""
        return self._row(2)

    @property
    def next_ids(self) -> Integers:
        """``[B]`` what the target says at the stop."""
        return self._row(3)

    @property
    def counts(self) -> Integers:
        """``[B]`` tokens of the block up to the one that ends the row, or all."""
        return self._row(4)

    @property
    def endings(self) -> Integers:
        """``[B]`` code of what ends the row, or 0."""
        return self._row(5)


class Way(IntEnum):
    """How drafts are judged: ``Way`` of ``judging.h``.

    OFFERED: as ``specdec.rules.MultiDraft`` does, and on chains ``Standard``. MATCHED: as ``SampleAndMatch`` does.
    RACED: as any rule that follows points does, once the target's ids are drawn in coupled mode.
    """

    OFFERED = 0
    MATCHED = 1
    RACED = 2


class Judging(NamedTuple):
    """What drafts are judged by.

    Attributes:
        way: of them.
        logits: ``[B, W, V]`` of one of NATIVE_DTYPES.
        sampling: as of ``NativeLaws.laws``; at temperature 0 a law is the point mass of the likeliest id.
        drawn: table ``[R, V]``, index and point ``[B, W-1]`` of the laws that the tokens were drawn from; None: they
            were chosen.
        without_replacement: ``[B, W-1]`` bool, ids drawn without those of their elder siblings by the same source;
            None: no id.
        tolerance: how far from 1 such a law's sum may be.
        path: of the streams; see ``NativeLaws.keyed``. RACED: a key for each row, then a position for each;
            see ``NativeLaws.raced``.
        purposes: the codes of the two draws, of the stop and of the next token; a race reads none.
    """

    way: Way
    logits: Tensor
    sampling: bytes
    drawn: Table | None
    without_replacement: Tensor | None
    tolerance: float
    path: bytes
    purposes: tuple[int, int]


class NativeWalks:
    """The functions of the compiled library.

    Args:
        built: the library.
    """

    def __init__(self, built: ctypes.CDLL) -> None:
        self._walks, self._judged = built.specdec_walks, built.specdec_judged
        limits = (_POINTER, _POINTER, _POINTER, _POINTER, _I64, _I64)
        self._walks.restype = self._judged.restype = _I64
        self._walks.argtypes = (_POINTER, *limits, _POINTER, _POINTER)
        self._judged.argtypes = (_POINTER, _POINTER, _POINTER, _POINTER, _I64, *limits, _POINTER, _POINTER)

    def __call__(
        self, drafts: Drafted, ids: Tensor, peaks: Tensor, limits: Limits, judging: Judging | None = None
    ) -> Walked | None:
        """Walk from each root into the first child, neither padding nor scout, that has the target's id, and so on.

        Args:
            drafts: their nodes.
            ids: ``[B, W]`` int64 the likeliest ids after each node: what the target says there, if nothing is judged.
            peaks: ``[B, W]`` the logits of these, of one of NATIVE_DTYPES.
            limits: of the rows.
            judging: drafts are walked as long as an id that comes next is accepted, and another one is drawn there.

        Returns:
            What became of it. None if tensors are of other kinds, or a row is at fault: its counts, parents, sources or
            scouts are not as ``specdec.contracts.Draft`` says, it is over its limits, a peak of a real node is NaN or
            infinite; or, if it is judged, an id is none, or a law that it was drawn from is none or cannot give it.

        Raises:
            ValueError: a shape or a number of limits that is not that of the ids.

        Cost: O(B W) for chains, O(B W D) for trees D deep. If drafts are judged, O(V) more for each node that was drawn
            from a law, and for each that may be reached before the stop and its children.
        """
        batch, width = ids.shape
        _check_shapes(drafts, peaks, limits, batch, width)
        tokens, parents, sizes, is_scout, source, num_sources, undefined, never = drafts
        integer, kind = torch.int64, peaks.dtype
        places = _places(
            (tokens, integer), (parents, integer), (sizes, integer), (is_scout, torch.bool), (source, integer),
            (undefined, integer), (ids, integer), (peaks, kind),
        )  # fmt: skip
        if places is None or kind not in NATIVE_DTYPES:
            return None
        columns = 0 if undefined is None else undefined.shape[1]
        struct = _DRAFTS.pack(*places, kind == torch.float64, batch, width, num_sources, columns, never)
        kinds = 1 if parents is None else 3
        out, size = np.empty(batch * (_NUMBERS + kinds * width), dtype=np.int64), batch * _NUMBERS
        numbers, nodes, at = out[:size].reshape(_NUMBERS, batch), out[size:].reshape(kinds, batch, width), place(out)
        *bounds, eos_ids, ending = limits
        outs = *bounds, eos_ids, len(eos_ids) // 8, ending, at, at + 8 * size
        if judging is None:
            fault = self._walks(struct, *outs)
        else:
            scored, path = _scored(judging, drafts, peaks), judging.path
            fault = scored is None or self._judged(struct, scored, judging.sampling, path, len(path) // 8, *outs)
        if fault:
            return None
        return Walked(numbers, nodes[0], None if kinds == 1 else (nodes[1], nodes[2]))


def _scored(judging: Judging, drafts: Drafted, peaks: Tensor) -> bytes | None:
    """Return the structure ``Scored``; None if tensors are of other kinds."""
    logits, drawn, without, (batch, width) = judging.logits, judging.drawn, judging.without_replacement, peaks.shape
    kind, below, size = peaks.dtype, (batch, width - 1), logits.shape[-1]
    if (
        logits.shape[:2] != peaks.shape
        or len(judging.sampling) != 32 * batch
        or not (without is None or without.shape == below)
        or (judging.way is Way.RACED and len(judging.path) != 16 * batch)
    ):
        given = f"logits {tuple(logits.shape)} and {len(judging.sampling) // 8} sampling parameters"
        raise ValueError(f"walks of {batch} rows with {width} nodes were given {given}")
    table, index, point = (None, None, None) if drawn is None else drawn
    places = _places((logits, kind), (table, kind), (index, torch.int64), (point, torch.int64), (without, torch.bool))
    if places is None:
        return None
    if drawn is not None:
        if not len(drawn[0]) and width > 1:  # it has no address, which would mean that ids were chosen
            return None
        if drawn[0].shape[1] != size or not drawn[1].shape == drawn[2].shape == below:
            return None
    *at, without_at = places
    num_laws = 0 if drawn is None else len(drawn[0])
    return _SCORED.pack(*at, num_laws, without_at, judging.tolerance, size, judging.way, *judging.purposes)


def _check_shapes(drafts: Drafted, peaks: Tensor, limits: Limits, batch: int, width: int) -> None:
    """Raise ValueError if compiled code would read beyond an array."""
    nodes, below, one, undefined = (batch, width), (batch, width - 1), (batch,), drafts.undefined
    fits = drafts.tokens.shape == peaks.shape == nodes and drafts.sizes.shape == one
    fits = fits and (drafts.parents is None or drafts.parents.shape == nodes)
    fits = fits and (drafts.is_scout is None or drafts.is_scout.shape == below)
    fits = fits and (drafts.source is None or drafts.source.shape == below)
    fits = fits and (undefined is None or len(undefined) == batch)
    sizes = (len(limits.max_depth) // 8, len(limits.max_nodes) // 8, len(limits.ignores_eos))
    if not fits or sizes != (batch,) * 3:
        given = {"peaks": peaks, **{n: x for n, x in drafts._asdict().items() if isinstance(x, Tensor)}}
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in given.items())
        raise ValueError(f"walks of {batch} rows with {width} nodes were given {shapes}, and limits of {sizes} rows")


def _places(*given: tuple[Tensor | None, torch.dtype]) -> list[int] | None:
    """Return where numbers lie, 0 for none; None if some cannot be read there, since they are of another kind."""
    places = []
    for numbers, dtype in given:
        if numbers is None:
            places.append(0)
        elif numbers.dtype == dtype and numbers.is_cpu and numbers.is_contiguous():
            places.append(numbers.data_ptr())
        else:
            return None
    return places


compiled_walks = once(NativeWalks)
