"""Walks through drafts in one call of compiled code: ``walks.h`` and ``judging.h`` in Python."""

import ctypes
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specdec.kernels.compiled.memory import (
    BOOL,
    FLOAT64,
    FLOATS,
    INT64,
    Integers,
    OtherKind,
    bytes_of,
    place,
    places_of,
)

_I64, _POINTER = ctypes.c_int64, ctypes.c_void_p
_SCORED = Struct("6qd4q")  # the structure `Scored`
_NUMBERS = 6  # written for each row, before what is written for each node


class Drafted(NamedTuple):
    """Drafts as they were scored, the root first: W nodes.

    Attributes:
        tokens: ``[B, W]``.
        parents: ``[B, W]``, -1 for the root; None for chains.
        sizes: ``[B]``, how many nodes are real, the root among them.
        is_scout: ``[B, W-1]``; None: no node.
        source: ``[B, W-1]``; None: all are 0.
        num_sources: how many there are.
        undefined: ``[B, S]``; a number below ``never`` is a fault. None: no fault.
        never: see ``undefined``.
    """

    tokens: Integers
    parents: Integers | None
    sizes: Integers
    is_scout: NDArray[np.bool_] | None
    source: Integers | None
    num_sources: int
    undefined: Integers | None
    never: int


class _Drafts(ctypes.Structure):
    """The structure ``Drafts``: arrays as their bytes, which cost less than to ask numpy for an address."""

    _fields_ = (
        *((name, ctypes.c_char_p) for name in ("tokens", "parents", "sizes", "scouts", "sources", "undefined")),
        *((name, ctypes.c_char_p) for name in ("ids", "peaks")),
        *((name, _I64) for name in ("is_double", "batch", "width", "num_sources", "columns", "never")),
    )


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

    OFFERED: as ``specdec.verify.MultiDraft`` does, and on chains ``Standard``. MATCHED: as ``SampleAndMatch`` does.
    RACED: in coupled mode the target's ids are drawn, and drafts are compared with them.
    """

    OFFERED = 0
    MATCHED = 1
    RACED = 2


class Judging(NamedTuple):
    """What drafts are judged by.

    Attributes:
        way: of them.
        logits: ``[B, W, V]`` float32 or float64.
        sampling: as of ``NativeLaws.laws``; at temperature 0 a law is the point mass of the likeliest id.
        drawn: table ``[R, V]``, index and point ``[B, W-1]`` of the laws that the tokens were drawn from; None: they
            were chosen.
        without_replacement: ``[B, W-1]`` bool, ids drawn without those of their elder siblings by the same source;
            None: no id.
        tolerance: how far from 1 such a law's sum may be.
        purposes: the codes of the two draws, of the stop and of the next token; a race reads none.
        numbers: what is drawn by. The path of the streams; see ``NativeLaws.keyed``. RACED: a key for each row, then a
            position for each; see ``NativeLaws.raced``. Or, but for RACED, ``[B, 2]`` float64 on [0, 1): for the stop
            and for the next token.
    """

    way: Way
    logits: Tensor
    sampling: bytes
    drawn: tuple[Tensor, ...] | None
    without_replacement: Tensor | None
    tolerance: float
    purposes: tuple[int, int]
    numbers: bytes | NDArray[np.float64] = b""


class NativeWalks:
    """The functions of the compiled library.

    Args:
        built: the library.
    """

    def __init__(self, built: ctypes.CDLL) -> None:
        self._walks, self._judged, self._told = built.specdec_walks, built.specdec_judged, built.specdec_told
        limits = (_POINTER, _POINTER, _POINTER, _POINTER, _I64, _I64)
        self._walks.restype = self._judged.restype = self._told.restype = _I64
        self._walks.argtypes = (_POINTER, *limits, _POINTER, _POINTER)
        self._judged.argtypes = (_POINTER, _POINTER, _POINTER, _POINTER, _I64, _POINTER, *limits, _POINTER, _POINTER)
        self._told.argtypes = (_POINTER,) * 10

    def __call__(
        self, drafts: Drafted, ids: Integers, peaks: NDArray[Any], limits: Limits, judging: Judging | None = None
    ) -> Walked | None:
        """Walk from each root into the first child, neither padding nor scout, that has the target's id, and so on.

        Args:
            drafts: their nodes.
            ids: ``[B, W]`` the likeliest ids after each node: what the target says there, if nothing is judged.
            peaks: ``[B, W]`` the logits of these, float32 or float64.
            limits: of the rows.
            judging: drafts are walked as long as an id that comes next is accepted, and another one is drawn there.

        Returns:
            What became of it. None if numbers are of other kinds, or a row is at fault: its counts, parents, sources or
            scouts are not as ``specdec.contracts.Draft`` says, it is over its limits, a peak of a real node is NaN or
            infinite; or, if it is judged, an id is none, or a law that it was drawn from is none or cannot give it.

        Raises:
            ValueError: a shape or a number of limits that is not that of the ids; numbers that nothing is drawn by.

        Cost: O(B W) for chains, O(B W D) for trees D deep. If drafts are judged, O(V) more for each node that was drawn
            from a law, and for each that may be reached before the stop and its children.
        """
        struct = _drafts(drafts, ids, peaks, limits)
        if struct is None:
            return None
        numbers, nodes = _room(drafts, ids)
        *bounds, eos_ids, ending = limits
        outs = *bounds, eos_ids, len(eos_ids) // 8, ending, place(numbers), place(nodes)
        of = ctypes.byref(struct)
        if judging is None:
            fault = self._walks(of, *outs)
        else:
            scored, by = _scored(judging, drafts, peaks), _numbers(judging, len(ids))
            fault = scored is None or self._judged(of, scored, judging.sampling, *by, *outs)
        if fault:
            return None
        return Walked(numbers, nodes[0], None if drafts.parents is None else (nodes[1], nodes[2]))

    def law(
        self, drafts: Drafted, ids: Integers, peaks: NDArray[Any], limits: Limits, judging: Judging
    ) -> tuple[NDArray[np.float64], NDArray[Any]] | None:
        """Return the law that a judged walk is drawn from.

        Arguments as above; who ends at which id, and by which numbers is drawn, is not read.

        Returns:
            ``[B, W]`` float64, the probability of stopping at each node, and ``[B, W, V]`` in the type of the logits,
            what each id has after a stop there; it need not sum to 1. Zeros at padding. None: see above.

        Raises:
            ValueError: see above.

        Cost: O(B W V).
        """
        struct = _drafts(drafts, ids, peaks, limits)
        scored = None if struct is None else _scored(judging, drafts, peaks)
        if struct is None or scored is None:
            return None
        numbers, nodes = _room(drafts, ids)
        stops, following = np.empty(ids.shape, np.float64), np.empty(judging.logits.shape, peaks.dtype)
        bounds, outs = limits[:3], (place(numbers), place(nodes), place(stops), place(following))
        if self._told(ctypes.byref(struct), scored, judging.sampling, *bounds, *outs):
            return None
        return stops, following


def _drafts(drafts: Drafted, ids: Integers, peaks: NDArray[Any], limits: Limits) -> _Drafts | None:
    """Return the structure ``Drafts``; None if numbers are of other kinds.

    Raises:
        ValueError: a shape is not that of the ids.
    """
    batch, width = ids.shape
    _check_shapes(drafts, peaks, limits, batch, width)
    tokens, parents, sizes, is_scout, source, num_sources, undefined, never = drafts
    if peaks.dtype not in FLOATS:
        return None
    try:
        by_source = bytes_of(is_scout, BOOL), bytes_of(source, INT64), bytes_of(undefined, INT64)
        given = bytes_of(tokens, INT64), bytes_of(parents, INT64), bytes_of(sizes, INT64), *by_source
        said = bytes_of(ids, INT64), peaks.tobytes(), FLOATS[peaks.dtype] is FLOAT64
    except OtherKind:
        return None
    columns = 0 if undefined is None else undefined.shape[1]
    return _Drafts(*given, *said, batch, width, num_sources, columns, never)


def _room(drafts: Drafted, ids: Integers) -> tuple[Integers, Integers]:
    """Return where numbers of rows and of nodes are written."""
    kinds = 1 if drafts.parents is None else 3
    return np.empty((_NUMBERS, len(ids)), np.int64), np.empty((kinds, *ids.shape), np.int64)


def _scored(judging: Judging, drafts: Drafted, peaks: NDArray[Any]) -> bytes | None:
    """Return the structure ``Scored``; None if numbers are of other kinds."""
    kind = FLOATS[peaks.dtype]
    logits, drawn, without, (batch, width) = judging.logits, judging.drawn, judging.without_replacement, peaks.shape
    below, size = (batch, width - 1), logits.shape[-1]
    if (
        logits.shape[:2] != peaks.shape
        or len(judging.sampling) != 32 * batch
        or not (without is None or without.shape == below)
    ):
        given = f"logits {tuple(logits.shape)} and {len(judging.sampling) // 8} sampling parameters"
        raise ValueError(f"walks of {batch} rows with {width} nodes were given {given}")
    table, index, point = (None, None, None) if drawn is None else drawn
    places = places_of((logits, kind), (table, kind), (index, INT64), (point, INT64), (without, BOOL))
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


def _numbers(judging: Judging, batch: int) -> tuple[bytes | None, int, bytes | None]:
    """Return what compiled code draws by: a path and its length, or the numbers themselves.

    Raises:
        ValueError: there are others, or not so many.
    """
    numbers, races = judging.numbers, judging.way is Way.RACED
    if isinstance(numbers, bytes):
        given = len(numbers) / 8
        if races and given != 2 * batch:
            raise ValueError(f"races of {batch} rows take {2 * batch} keys and positions, not {given:g}")
        if given < batch:
            raise ValueError(f"the path of {batch} streams begins with as many seeds, and has {given:g} numbers")
        return numbers, len(numbers) // 8, None
    within = bool(((numbers >= 0) & (numbers < 1)).all())
    if races or numbers.shape != (batch, 2) or numbers.dtype != np.float64 or not within:
        raise ValueError(f"give float64 numbers [{batch}, 2] on [0, 1); races take the bytes of keys and positions")
    return None, 0, numbers.tobytes()


def _check_shapes(drafts: Drafted, peaks: NDArray[Any], limits: Limits, batch: int, width: int) -> None:
    """Raise ValueError if compiled code would read beyond an array."""
    nodes, below, one, undefined = (batch, width), (batch, width - 1), (batch,), drafts.undefined
    fits = drafts.tokens.shape == peaks.shape == nodes and drafts.sizes.shape == one
    fits = fits and (drafts.parents is None or drafts.parents.shape == nodes)
    fits = fits and (drafts.is_scout is None or drafts.is_scout.shape == below)
    fits = fits and (drafts.source is None or drafts.source.shape == below)
    fits = fits and (undefined is None or len(undefined) == batch)
    sizes = (len(limits.max_depth) // 8, len(limits.max_nodes) // 8, len(limits.ignores_eos))
    if not fits or sizes != (batch,) * 3:
        given = {"peaks": peaks, **{n: x for n, x in drafts._asdict().items() if isinstance(x, np.ndarray)}}
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in given.items())
        raise ValueError(f"walks of {batch} rows with {width} nodes were given {shapes}, and limits of {sizes} rows")
