"""Verdicts on drafts in one call of compiled code: ``walks.h`` and ``verify.h`` in Python.

What the call reads of drafts is packed before the pass that scores them, whose memory traffic empties the CPU's caches:
after it only ids, logits and numbers are filled in.
"""

import ctypes
from collections.abc import Sequence
from ctypes import byref
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import NEVER, BoolArray, Budget, Draft, Ending, FloatArray, IntArray, Tree
from specdec.kernels.compiled.build import HEADERS
from specdec.kernels.compiled.faults import Fault, FaultCode
from specdec.kernels.compiled.laws import FILTERS
from specdec.kernels.compiled.memory import place
from specdec.kernels.compiled.schema import LATER, OtherKind, kind_of, structure
from specdec.laws import Laws

_POINTER = ctypes.c_void_p
_FAULT, _NUMBERS = 3, 6  # written of a batch, and for each row, before what is written for each node
_Drafts, _Bounds, _Laws, _Target = (
    structure(HEADERS / "verify.h", name) for name in ("Drafts", "Bounds", "Laws", "Target")
)


class NativeVerdict(NamedTuple):
    """What became of drafts.

    Attributes:
        num_nodes: ``[B]`` nodes without the root.
        stops: ``[B]`` nodes where the walks stopped.
        accepted: ``[B]`` how many tokens are accepted.
        next_ids: ``[B]`` what the target says at the stop.
        counts: ``[B]`` tokens of the block up to the one that ends the row, or all.
        endings: ``[B]`` code of what ends the row, or 0.
        block: ``[B, W]`` accepted tokens and the next one, -1 beyond.
        trees: ``[B, W]`` depths of nodes, and ``[B, W]`` paths from the root to the stop, 0 beyond; empty for chains.
    """

    num_nodes: IntArray
    stops: IntArray
    accepted: IntArray
    next_ids: IntArray
    counts: IntArray
    endings: IntArray
    block: IntArray
    trees: Sequence[IntArray]


class Way(IntEnum):
    """How drafts are verified: ``Way`` of ``verify.h``.

    OFFERED: as ``specdec.verify.MultiDraft`` does, and on chains ``Standard``. MATCHED: as ``SampleAndMatch`` does.
    RACED: in coupled mode the target's ids are drawn, and drafts are compared with them. STANDING: as ``Traversal``
    does, and on chains ``BlockVerification``.
    """

    OFFERED = 0
    MATCHED = 1
    RACED = 2
    STANDING = 3


class VerifyInputs(NamedTuple):
    """What drafts are verified by, where laws decide: all that is known before the target's logits.

    Attributes:
        way: of them.
        filters: ``[F, B]`` float64, a row for each of FILTERS; at temperature 0 a law is the point mass of the
            likeliest id. None: laws are given.
        tolerance: how far from 1 the sum of a law may be that a token was drawn from.
        laws: ``[B, W]`` of the target; None: they are made of logits.
    """

    way: Way
    filters: FloatArray | None
    tolerance: float
    laws: Laws | None = None


class PackedDrafts:
    """Drafts in the structures that compiled code reads, with room for what becomes of them.

    Args:
        draft: of B rows, on the host.
        nodes: ``[B, W]`` as they are scored, from ``draft.after``.
        budget: of the rows.
        ignores_eos: ``[B]``.
        eos_ids: what else ends a row.
        by: laws decide: walks go on as long as an id that comes next is accepted, and then another one is drawn. None:
            ids are compared.

    Attributes:
        draft, nodes, budget, ignores_eos, eos_ids, by: the same.
        verdict: what a call of ``NativeWalks`` writes.

    Raises:
        OtherKind: numbers are of other kinds than compiled code reads.
        ValueError: a shape is not that of the nodes.
    """

    def __init__(
        self,
        draft: Draft,
        nodes: Tree,
        budget: Budget,
        ignores_eos: BoolArray,
        eos_ids: Sequence[int] = (),
        by: VerifyInputs | None = None,
    ) -> None:
        self.draft, self.nodes, self.budget, self.ignores_eos, self.eos_ids = draft, nodes, budget, ignores_eos, eos_ids
        self.by, undefined = by, draft.undefined
        batch, width = nodes.tokens.shape
        columns = 0 if undefined is None else undefined.shape[1]
        self._sizes = sizes = {"batch": batch, "width": width, "columns": columns, "num_eos": len(eos_ids)}
        self._nodes = _Drafts.of(
            sizes, None, ids=LATER, peaks=LATER, tokens=nodes.tokens, parents=nodes.parents, sizes=nodes.num_nodes,
            scouts=draft.is_scout, sources=draft.source, num_sources=len(draft.source_names) or 1, undefined=undefined,
            never=NEVER,
        )  # fmt: skip
        self._bounds = _Bounds.of(
            sizes, None, max_depth=budget.max_depth, max_nodes=budget.max_nodes, ignores_eos=ignores_eos,
            eos_ids=np.array(eos_ids, dtype=np.int64), ending=Ending.EOS,
        )  # fmt: skip
        self._target: Any = None if by is None else _target_of(by, draft, sizes)
        kinds = 1 if nodes.parents is None else 3
        room = torch.zeros(_FAULT + batch * (_NUMBERS + kinds * width), dtype=torch.int64, device="cpu")
        numbers, ends, at = room.numpy(), _FAULT + _NUMBERS * batch, room.data_ptr()
        self.fault, self._written = numbers[:_FAULT], (at, at + 8 * _FAULT, at + 8 * ends)
        block, *trees = numbers[ends:].reshape(kinds, batch, width)
        self.verdict = NativeVerdict._make((*numbers[_FAULT:ends].reshape(_NUMBERS, batch), block, trees))

    def vocab_size(self, logits: Tensor | None) -> int:
        """Return V of the laws that decide."""
        if self.by is not None and self.by.laws is not None:
            return self.by.laws.table.shape[1]
        assert logits is not None
        return logits.shape[2]

    def arguments(
        self, ids: IntArray, peaks: NDArray[Any], logits: Tensor | None, numbers: NDArray[Any] | None
    ) -> tuple[Any, ...]:
        """Return what compiled code is called with, given what ``NativeWalks`` is called with.

        Raises:
            OtherKind, ValueError: see ``NativeWalks``.
        """
        floats, sizes, by = kind_of(peaks), self._sizes, self.by
        self._nodes.fill(sizes, floats, ids=ids, peaks=peaks)
        if by is None:
            return byref(self._nodes), byref(self._bounds), *self._written
        size = self.vocab_size(logits)
        for laws in (by.laws, self.draft.laws):
            if laws is None or not len(laws.table):
                continue
            if laws.table.shape[1] != size or laws.table.dtype is not floats.of_tensors:
                raise OtherKind(f"laws are of {laws.table.shape[1]} ids in {laws.table.dtype}, the target's of {size}")
        path, uniforms = _draws(by.way, numbers, len(ids))
        words = 0 if path is None else path.size
        more = {"size": size, "words": words}
        self._target.fill(sizes | more, floats, logits=logits, path=path, uniforms=uniforms, **more)
        return byref(self._nodes), byref(self._target), byref(self._bounds), *self._written


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
        self,
        drafts: PackedDrafts,
        ids: IntArray,
        peaks: NDArray[Any],
        logits: Tensor | None = None,
        numbers: NDArray[Any] | None = None,
    ) -> NativeVerdict | None:
        """Walk from each root into the first child, neither padding nor scout, that has the target's id, and so on.

        Args:
            drafts: what is verified, and by what.
            ids: ``[B, W]`` the likeliest ids after each node: what the target says there, if no law decides.
            peaks: ``[B, W]`` the logits of these, float32 or float64.
            logits: ``[B, W, V]`` float32 or float64; None: laws are given, or ids are compared.
            numbers: what is drawn by if laws decide. ``[K]`` int64, the path of the streams (see ``NativeLaws.draw``),
                then the codes of the purposes of the stop and of the next token. RACED: a key for each row, then a
                position for each; see ``NativeLaws.race``. Or, but for RACED, ``[B, 2]`` float64 on [0, 1): for the
                stop and for the next token.

        Returns:
            What becomes of the drafts, in the room that they bring. None if numbers are of other kinds than compiled
            code reads.

        Raises:
            Fault: a draft is not as ``specdec.contracts.Draft`` says, or over its budget, or logits are no law.
            ValueError: a shape is not that of the drafts; numbers that nothing can be drawn by.

        Cost: O(B W) for chains, O(B W D) for trees D deep. If laws decide, O(V) more for each node that was drawn
            from a law, and for each that may be reached before the stop and its children.
        """
        if drafts.by is not None and numbers is None:
            raise ValueError("laws decide, and numbers is None: nothing can be drawn")
        try:
            given = drafts.arguments(ids, peaks, logits, numbers)
        except OtherKind:
            return None
        (self._walk if drafts.by is None else self._verify)(*given)
        if drafts.fault[0]:
            raise _fault_of(drafts)
        return drafts.verdict

    def law(
        self, drafts: PackedDrafts, ids: IntArray, peaks: NDArray[Any], logits: Tensor | None
    ) -> tuple[FloatArray, NDArray[Any]] | None:
        """Return the law that a verdict is drawn from.

        Arguments as above; laws decide. Who ends at which id is not read.

        Returns:
            ``[B, W]`` float64, the probability of stopping at each node, and ``[B, W, V]`` in the type of the logits,
            what each id has after a stop there; it need not sum to 1. Zeros at padding. None: see above.

        Raises:
            Fault, ValueError: see above.

        Cost: O(B W V).
        """
        try:
            given = drafts.arguments(ids, peaks, logits, None)
        except OtherKind:
            return None
        stops = np.empty(ids.shape, np.float64)
        following = np.empty((*ids.shape, drafts.vocab_size(logits)), peaks.dtype)
        self._law(*given, place(stops), place(following))
        if drafts.fault[0]:
            raise _fault_of(drafts)
        return stops, following


def _fault_of(drafts: PackedDrafts) -> Fault:
    code, row, node = drafts.fault.tolist()
    return Fault(FaultCode(code), row, node)


def _target_of(by: VerifyInputs, draft: Draft, sizes: dict[str, int]) -> Any:
    """Return the structure ``Target``, but for what is known after the pass."""
    width = sizes["width"]
    return _Target.of(
        sizes | {"filters": len(FILTERS), "size": 0, "words": 0}, None, logits=LATER, path=LATER, uniforms=LATER,
        filters=by.filters, without=draft.without_replacement, tolerance=by.tolerance, way=by.way,
        laws=_laws(by.laws, sizes, width), drawn=_laws(draft.laws, sizes, width - 1),
    )  # fmt: skip


def _laws(laws: Laws | None, sizes: dict[str, int], nodes: int) -> Any:
    """Return the structure ``Laws``."""
    if laws is None:
        return _Laws()
    rows, size = laws.table.shape
    table, floats = (laws.table, kind_of(laws.table)) if rows else (None, None)
    more = {"nodes": nodes, "rows": rows, "size": size}
    return _Laws.of(sizes | more, floats, table=table, index=laws.index, point=laws.point)


def _draws(way: Way, numbers: NDArray[Any] | None, batch: int) -> tuple[IntArray | None, FloatArray | None]:
    """Return what compiled code draws by: ``path`` and ``uniforms`` of ``Target``.

    Raises:
        ValueError: they are numbers of another kind, or not so many.
    """
    races = way is Way.RACED
    if numbers is None:
        return None, None
    if numbers.ndim == 1 and numbers.dtype == np.int64:
        if races and numbers.size != 2 * batch:
            raise ValueError(f"races of {batch} rows take {2 * batch} keys and positions, not {numbers.size}")
        if not races and numbers.size < batch + 2:
            raise ValueError(f"the path of {batch} streams begins with as many seeds, and has {numbers.size} numbers")
        return numbers, None
    within = bool(((numbers >= 0) & (numbers < 1)).all())
    if races or numbers.shape != (batch, 2) or numbers.dtype != np.float64 or not within:
        raise ValueError(f"give float64 numbers [{batch}, 2] on [0, 1); races take keys and positions")
    return None, numbers
