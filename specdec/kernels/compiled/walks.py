"""Verdicts on drafts in one call of compiled code: ``walks.h`` and ``verify.h`` in Python."""

import ctypes
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specdec.kernels.compiled.build import HEADERS
from specdec.kernels.compiled.faults import Fault, FaultCode
from specdec.kernels.compiled.laws import FILTERS
from specdec.kernels.compiled.memory import Integers, place
from specdec.kernels.compiled.schema import Kind, OtherKind, kind_of, structure

LawParts = tuple[Tensor, Tensor, Tensor]
_POINTER = ctypes.c_void_p
_NUMBERS = 6  # written for each row, before what is written for each node
_Drafts, _Bounds, _Laws, _Target = (
    structure(HEADERS / "verify.h", name) for name in ("Drafts", "Bounds", "Laws", "Target")
)


class DraftBuffers(NamedTuple):
    """Drafts as they were scored, the root first: W nodes. The fields of ``Drafts`` in ``walks.h``.

    Attributes:
        tokens: ``[B, W]``.
        parents: ``[B, W]``, -1 for the root; None for chains.
        sizes: ``[B]``, how many nodes are real, the root among them.
        scouts: ``[B, W-1]`` bool; None: no node.
        sources: ``[B, W-1]``; None: all are 0.
        num_sources: how many there are.
        undefined: ``[B, S]``; a number below ``never`` is a fault. None: no fault.
        never: see ``undefined``.
    """

    tokens: Integers
    parents: Integers | None
    sizes: Integers
    scouts: NDArray[np.bool_] | None
    sources: Integers | None
    num_sources: int
    undefined: Integers | None
    never: int


class Limits(NamedTuple):
    """What rows may do and what ends them.

    Attributes:
        max_depth, max_nodes: ``[B]``, without the root.
        ignores_eos: ``[B]``.
        eos_ids: ``[E]``.
        ending: the code of a row that meets one of them.
    """

    max_depth: Integers
    max_nodes: Integers
    ignores_eos: NDArray[np.bool_]
    eos_ids: Integers
    ending: int


class NativeVerdict(NamedTuple):
    """What became of drafts.

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
    """How drafts are verified: ``Way`` of ``verify.h``.

    OFFERED: as ``specdec.verify.MultiDraft`` does, and on chains ``Standard``. MATCHED: as ``SampleAndMatch`` does.
    RACED: in coupled mode the target's ids are drawn, and drafts are compared with them.
    """

    OFFERED = 0
    MATCHED = 1
    RACED = 2


class VerifyInputs(NamedTuple):
    """What drafts are verified by, where laws decide.

    Attributes:
        way: of them.
        logits: ``[B, W, V]`` float32 or float64; None: laws are given.
        filters: ``[F, B]`` float64, a row for each of FILTERS; at temperature 0 a law is the point mass of the
            likeliest id. None: laws are given.
        drawn: table ``[R, V]``, index and point ``[B, W-1]`` of the laws that the tokens were drawn from; None: they
            were chosen.
        without_replacement: ``[B, W-1]`` bool, ids drawn without those of their elder siblings by the same source;
            None: no id.
        tolerance: how far from 1 such a law's sum may be.
        numbers: what is drawn by. ``[K]`` int64, the path of the streams (see ``NativeLaws.draw``), then the codes of
            the purposes of the stop and of the next token. RACED: a key for each row, then a position for each; see
            ``NativeLaws.race``. Or, but for RACED, ``[B, 2]`` float64 on [0, 1): for the stop and for the next token.
            None: nothing is drawn.
        laws: table ``[R, V]``, index and point ``[B, W]`` of the target's laws; None: they are made of logits.
    """

    way: Way
    logits: Tensor | None
    filters: NDArray[np.float64] | None
    drawn: LawParts | None
    without_replacement: Tensor | None
    tolerance: float
    numbers: NDArray[Any] | None = None
    laws: LawParts | None = None

    @property
    def size(self) -> int:
        """V."""
        if self.laws is not None:
            return self.laws[0].shape[1]
        assert self.logits is not None
        return self.logits.shape[2]


class NativeWalks:
    """The functions of the compiled library.

    Args:
        built: the library.
    """

    def __init__(self, built: ctypes.CDLL) -> None:
        self._walk, self._verify, self._law = built.specdec_walk, built.specdec_verify, built.specdec_verdict_law
        for function, count in ((self._walk, 5), (self._verify, 6), (self._law, 8)):
            function.restype, function.argtypes = None, (_POINTER,) * count

    def __call__(
        self, drafts: DraftBuffers, ids: Integers, peaks: NDArray[Any], limits: Limits, by: VerifyInputs | None = None
    ) -> NativeVerdict | None:
        """Walk from each root into the first child, neither padding nor scout, that has the target's id, and so on.

        Args:
            drafts: their nodes.
            ids: ``[B, W]`` the likeliest ids after each node: what the target says there, if no law decides.
            peaks: ``[B, W]`` the logits of these, float32 or float64.
            limits: of the rows.
            by: laws decide: walks go on as long as an id that comes next is accepted, and then another one is drawn.

        Returns:
            What becomes of the drafts. None if numbers are of other kinds than compiled code reads.

        Raises:
            Fault: a draft is not as ``specdec.contracts.Draft`` says, or over its limits, or logits are no law.
            ValueError: a shape is not that of the ids; numbers that nothing can be drawn by.

        Cost: O(B W) for chains, O(B W D) for trees D deep. If laws decide, O(V) more for each node that was drawn
            from a law, and for each that may be reached before the stop and its children.
        """
        if by is not None and by.numbers is None:
            raise ValueError("laws decide, and numbers is None: nothing can be drawn")
        try:
            given = _pack(drafts, ids, peaks, limits, by)
        except OtherKind:
            return None
        fault, numbers, nodes = _room(drafts, ids)
        outs = place(fault), place(numbers), place(nodes)
        (self._walk if by is None else self._verify)(*map(ctypes.byref, given), *outs)
        _raise_from(fault)
        return NativeVerdict(numbers, nodes[0], None if drafts.parents is None else (nodes[1], nodes[2]))

    def law(
        self, drafts: DraftBuffers, ids: Integers, peaks: NDArray[Any], limits: Limits, by: VerifyInputs
    ) -> tuple[NDArray[np.float64], NDArray[Any]] | None:
        """Return the law that a verdict is drawn from.

        Arguments as above; who ends at which id, and by which numbers is drawn, is not read.

        Returns:
            ``[B, W]`` float64, the probability of stopping at each node, and ``[B, W, V]`` in the type of the logits,
            what each id has after a stop there; it need not sum to 1. Zeros at padding. None: see above.

        Raises:
            Fault, ValueError: see above.

        Cost: O(B W V).
        """
        try:
            given = _pack(drafts, ids, peaks, limits, by._replace(numbers=None))
        except OtherKind:
            return None
        fault, numbers, nodes = _room(drafts, ids)
        stops, following = np.empty(ids.shape, np.float64), np.empty((*ids.shape, by.size), peaks.dtype)
        outs = place(fault), place(numbers), place(nodes), place(stops), place(following)
        self._law(*map(ctypes.byref, given), *outs)
        _raise_from(fault)
        return stops, following


def _pack(
    drafts: DraftBuffers, ids: Integers, peaks: NDArray[Any], limits: Limits, by: VerifyInputs | None
) -> tuple[Any, ...]:
    """Return the structures ``Drafts``, ``Target`` if laws decide, and ``Bounds``.

    Raises:
        OtherKind, ValueError: see ``Crossing.of``; ValueError: see ``_draws``.
    """
    batch, width = ids.shape
    floats = kind_of(peaks)
    columns = 0 if drafts.undefined is None else drafts.undefined.shape[-1]
    sizes = {"batch": batch, "width": width, "columns": columns, "num_eos": len(limits.eos_ids)}
    nodes = _Drafts.of(sizes, floats, ids=ids, peaks=peaks, **drafts._asdict())
    bounds = _Bounds.of(sizes, floats, **limits._asdict())
    if by is None:
        return nodes, bounds
    draws = _draws(by, batch)
    words = 0 if draws["path"] is None else draws["path"].size
    sizes |= {"size": by.size, "filters": len(FILTERS), "words": words}
    target = _Target.of(
        sizes, floats, logits=by.logits, filters=by.filters, without=by.without_replacement, tolerance=by.tolerance,
        way=by.way, laws=_laws(by.laws, sizes, width, floats), drawn=_laws(by.drawn, sizes, width - 1, floats), **draws,
    )  # fmt: skip
    return nodes, target, bounds


def _laws(parts: LawParts | None, sizes: dict[str, int], nodes: int, floats: Kind) -> Any:
    """Return the structure ``Laws``. Raises OtherKind if laws are of another vocabulary than the target's."""
    if parts is None:
        return _Laws()
    table, index, point = parts
    rows, given = len(table), {"index": index, "point": point}
    if rows and table.shape[1] != sizes["size"]:
        raise OtherKind(f"laws are of {table.shape[1]} ids, and the target's of {sizes['size']}")
    return _Laws.of(sizes | {"nodes": nodes, "rows": rows}, floats, table=table if rows else None, **given)


def _draws(by: VerifyInputs, batch: int) -> dict[str, Any]:
    """Return what compiled code draws by, as fields of ``Target``.

    Raises:
        ValueError: they are numbers of another kind, or not so many.
    """
    numbers, races = by.numbers, by.way is Way.RACED
    if numbers is None:
        return {"path": None, "uniforms": None}
    if numbers.ndim == 1 and numbers.dtype == np.int64:
        if races and numbers.size != 2 * batch:
            raise ValueError(f"races of {batch} rows take {2 * batch} keys and positions, not {numbers.size}")
        if not races and numbers.size < batch + 2:
            raise ValueError(f"the path of {batch} streams begins with as many seeds, and has {numbers.size} numbers")
        return {"path": numbers, "uniforms": None}
    within = bool(((numbers >= 0) & (numbers < 1)).all())
    if races or numbers.shape != (batch, 2) or numbers.dtype != np.float64 or not within:
        raise ValueError(f"give float64 numbers [{batch}, 2] on [0, 1); races take keys and positions")
    return {"path": None, "uniforms": numbers}


def _room(drafts: DraftBuffers, ids: Integers) -> tuple[Integers, Integers, Integers]:
    """Return where a fault, and numbers of rows and of nodes are written."""
    kinds = 1 if drafts.parents is None else 3
    return np.zeros(3, np.int64), np.empty((_NUMBERS, len(ids)), np.int64), np.empty((kinds, *ids.shape), np.int64)


def _raise_from(fault: Integers) -> None:
    """Raise the Fault that was written, if one was."""
    if fault[0]:
        code, row, node = fault.tolist()
        raise Fault(FaultCode(code), row, node)
