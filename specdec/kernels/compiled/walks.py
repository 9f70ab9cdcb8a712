"""Verdicts on drafts in one call of compiled code: ``walks.h`` and ``verify.h`` in Python.

What the call reads of drafts is packed before the pass that scores them, whose memory traffic empties the CPU's caches:
after it only ids, logits and numbers are filled in.
"""

import ctypes
from collections.abc import Sequence
from ctypes import byref
from dataclasses import replace
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import NEVER, BoolArray, Budget, Draft, Ending, FloatArray, IntArray, Tree
from specdec.kernels.compiled.build import HEADERS
from specdec.kernels.compiled.compiled_laws import FILTERS
from specdec.kernels.compiled.faults import Fault, FaultCode
from specdec.kernels.compiled.schema import LATER, OtherKind, kind_of, place, structure
from specdec.laws import Laws

_POINTER = ctypes.c_void_p
_FAULT, _NUMBERS = 3, 6  # written of a batch, and for each row, before what is written for each node
_Drafts, _Laws, _Target = (structure(HEADERS / "verify.h", name) for name in ("Drafts", "Laws", "Target"))
_NO_LAWS = _Laws()
Rows = NDArray[np.integer[Any]]


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


class NativeWalks:
    """The functions of the compiled library; ``PackedDrafts`` calls them.

    Args:
        built: the library.

    Attributes:
        walk: writes what becomes of drafts whose ids are compared.
        verify: the same if laws decide.
        law: writes the law of such a verdict.
    """

    def __init__(self, built: ctypes.CDLL) -> None:
        self.walk, self.verify, self.law = built.specdec_walk, built.specdec_verify, built.specdec_verdict_law
        for function, count in ((self.walk, 4), (self.verify, 5), (self.law, 7)):
            function.restype, function.argtypes = None, (_POINTER,) * count


class PackedDrafts(_Drafts):  # type: ignore[valid-type, misc]
    """Drafts in the structure that compiled code reads, with room for what becomes of them.

    ``take`` brings what is known after their pass; then ``draw`` writes the verdict, and the methods of an
    ``OpenVerdict`` can be called.

    Args:
        walks: whose functions are called.
        draft: of B rows, on the host.
        nodes: ``[B, W]`` as they are scored, from ``draft.after``.
        budget: of the rows.
        ignores_eos: ``[B]``.
        eos_ids: what else ends a row.
        way: how laws decide: walks go on as long as an id that comes next is accepted, and then another one is drawn.
            None: ids are compared, and the arguments below are not read.
        filters: ``[F, B]`` float64, a row for each of FILTERS; at temperature 0 a law is the point mass of the
            likeliest id. None: laws are given.
        laws: ``[B, W]`` of the target; None: they are made of logits.
        tolerance: how far from 1 the sum of a law may be that a token was drawn from.
        rule: the name of the rule whose law decides.

    Attributes:
        draft, nodes, way, rule: the same.
        num_nodes: ``[B]`` nodes without the root.
        stops: ``[B]`` nodes where the walks stopped.
        accepted: ``[B]`` how many tokens are accepted.
        next_ids: ``[B]`` what the target says at the stop.
        counts: ``[B]`` tokens of the block up to the one that ends the row, or all.
        endings: ``[B]`` code of what ends the row, or 0.
        block: ``[B, W]`` accepted tokens and the next one, -1 beyond.
        trees: ``[B, W]`` depths of nodes, and ``[B, W]`` paths from the root to the stop, 0 beyond; empty for chains.

    Raises:
        OtherKind: numbers are of other kinds than compiled code reads.
        ValueError: a shape is not that of the nodes.
    """

    def __init__(
        self,
        walks: NativeWalks,
        draft: Draft,
        nodes: Tree,
        budget: Budget,
        ignores_eos: BoolArray,
        eos_ids: Sequence[int] = (),
        way: Way | None = None,
        filters: FloatArray | None = None,
        laws: Laws | None = None,
        tolerance: float = np.inf,
        rule: str = "",
    ) -> None:
        self.kept: list[Any] = []
        self.draft, self.nodes, self.way, self.rule, undefined = draft, nodes, way, rule, draft.undefined
        self._walks, self._given = walks, (budget, ignores_eos, eos_ids, filters, laws, tolerance)
        batch, width = nodes.tokens.shape
        columns = 0 if undefined is None else undefined.shape[1]
        self._sizes = sizes = {"batch": batch, "width": width, "columns": columns, "num_eos": len(eos_ids)}
        self.fill(
            sizes, None, tokens=nodes.tokens, parents=nodes.parents, sizes=nodes.num_nodes, scouts=draft.is_scout,
            sources=draft.source, num_sources=len(draft.source_names) or 1, undefined=undefined, never=NEVER,
            max_depth=budget.max_depth, max_nodes=budget.max_nodes, ignores_eos=ignores_eos,
            eos_ids=np.array(eos_ids, dtype=np.int64), ending=Ending.EOS, **sizes,
        )  # fmt: skip
        self._target: Any = None
        self._scored: Any = None
        if way is not None:
            self._target = _Target.of(
                sizes | {"filters": len(FILTERS), "size": 0, "words": 0}, None, logits=LATER, path=LATER,
                uniforms=LATER, filters=filters, without=draft.without_replacement, tolerance=tolerance, way=way,
                laws=_NO_LAWS if laws is None else _laws(laws, sizes, width),
                drawn=_NO_LAWS if draft.laws is None else _laws(draft.laws, sizes, width - 1),
            )  # fmt: skip
        kinds = 1 if nodes.parents is None else 3
        room = torch.zeros(_FAULT + batch * (_NUMBERS + kinds * width), dtype=torch.int64, device="cpu")
        numbers, ends, at = room.numpy(), _FAULT + _NUMBERS * batch, room.data_ptr()
        self._fault, self._written = numbers[:_FAULT], (at, at + 8 * _FAULT, at + 8 * ends)
        found = numbers[_FAULT:ends].reshape(_NUMBERS, batch)
        self.num_nodes, self.stops, self.accepted, self.next_ids, self.counts, self.endings = found
        self.block, *self.trees = numbers[ends:].reshape(kinds, batch, width)

    def take(self, ids: IntArray, peaks: NDArray[Any], logits: Tensor | None = None) -> None:
        """Take in what is known after the pass.

        Args:
            ids: ``[B, W]`` the likeliest ids after each node: what the target says there, if no law decides.
            peaks: ``[B, W]`` the logits of these, float32 or float64.
            logits: ``[B, W, V]`` float32 or float64; None: laws are given, or ids are compared.

        Raises:
            OtherKind, ValueError: see above.
        """
        floats, laws = kind_of(peaks), self._given[4]
        self.fill(self._sizes, floats, ids=ids, peaks=peaks)
        self._scored = ids, peaks, logits
        if self._target is None:
            return
        if logits is None:
            assert laws is not None
            size = laws.table.shape[1]
        else:
            size = logits.shape[2]
        for given in (laws, self.draft.laws):
            if given is None or not len(given.table):
                continue
            if given.table.shape[1] != size or given.table.dtype is not floats.of_tensors:
                raise OtherKind(f"laws are of {given.table.shape[1]} ids in {given.table.dtype}, not of {size}")
        self._sizes["size"], self._floats = size, floats

    def draw(self, numbers: NDArray[Any] | None = None) -> None:
        """Write what becomes of the drafts, into the room that they bring.

        Without laws a walk goes from each root into the first child, neither padding nor scout, that has the target's
        id, and so on.

        Args:
            numbers: those to draw by, if laws decide. ``[K]`` int64, the path of the streams (see ``Streams.path``),
                then the codes of the purposes of the stop and of the next token. RACED: a key for each row, then a
                position for each; see ``Kernels.race``. Or, but for RACED, ``[B, 2]`` float64 on [0, 1): for the stop
                and for the next token.

        Raises:
            Fault: a draft is not as ``specdec.contracts.Draft`` says, or over its budget, or logits make no law.
            ValueError: numbers that nothing can be drawn by, or ``take`` has brought nothing yet.

        Cost: O(B W) for chains, O(B W D) for trees D deep. If laws decide, O(V) more for each node that was drawn
            from a law, and for each that may be reached before the stop and its children.
        """
        if self._scored is None:
            raise ValueError("nothing is known of the pass of these drafts yet: call take first")
        if self._target is None:
            self._walks.walk(byref(self), *self._written)
        else:
            if numbers is None:
                raise ValueError("laws decide, and numbers is None: nothing can be drawn")
            batch, races, is_path = len(self.stops), self.way is Way.RACED, numbers.dtype == np.int64
            if is_path and races and numbers.shape != (2 * batch,):
                raise ValueError(f"races of {batch} rows take {2 * batch} keys and positions, not {numbers.size}")
            if is_path and not races and not (numbers.ndim == 1 and numbers.size >= batch + 2):
                raise ValueError(
                    f"the path of {batch} streams begins with as many seeds, and has {numbers.size} numbers"
                )
            if not is_path and (races or not _are_uniforms(numbers, batch)):
                raise ValueError(f"give float64 numbers [{batch}, 2] on [0, 1); races take keys and positions")
            path, uniforms = (numbers, None) if is_path else (None, numbers)
            drawn_by = {"path": path, "uniforms": uniforms, "words": numbers.size}
            sizes = self._sizes | {"words": numbers.size}
            self._target.fill(sizes, self._floats, logits=self._scored[2], size=sizes["size"], **drawn_by)
            self._walks.verify(byref(self), byref(self._target), *self._written)
        if self._fault[0]:
            raise self._read_fault()

    def law(self) -> tuple[FloatArray, NDArray[Any]]:
        """Return the law that a verdict is drawn from, if laws decide. Which ids end a row is not read.

        Returns:
            ``[B, W]`` float64, the probability of stopping at each node, and ``[B, W, V]`` in the type of the logits,
            what each id has after a stop there; it need not sum to 1. Zeros at padding.

        Raises:
            Fault: see ``draw``.

        Cost: O(B W V).
        """
        ids, peaks, logits = self._scored
        size, target = self._sizes["size"], byref(self._target)
        self._target.fill(self._sizes, self._floats, logits=logits, size=size)
        stops, following = np.empty(ids.shape, np.float64), np.empty((*ids.shape, size), peaks.dtype)
        self._walks.law(byref(self), target, *self._written, place(stops), place(following))
        if self._fault[0]:
            raise self._read_fault()
        return stops, following

    def verify(self, rows: Rows, uniforms: FloatArray) -> tuple[IntArray, IntArray]:
        """Return what given numbers make of some rows, if laws decide.

        Args:
            rows: ``[M]`` of the batch, each as often as it is asked about.
            uniforms: ``[M, 2]`` on [0, 1): what the stop and the next token are drawn by.

        Returns:
            ``[M]`` the nodes where walks stop, and ``[M]`` the next ids.

        Raises:
            Fault, ValueError: see ``draw``.

        Cost: one call, and a copy of the logits of these rows.
        """
        (ids, peaks, logits), draft, nodes = self._scored, self.draft, self.nodes
        budget, ignores_eos, eos_ids, filters, laws, tolerance = self._given
        names = ("is_scout", "source", "undefined", "laws", "without_replacement")
        some = PackedDrafts(
            self._walks,
            replace(draft, **{name: _part(getattr(draft, name), rows) for name in names}),
            Tree(nodes.tokens[rows], _part(nodes.parents, rows), nodes.num_nodes[rows]),
            Budget(budget.max_depth[rows], budget.max_nodes[rows]),
            ignores_eos[rows],
            eos_ids,
            self.way,
            None if filters is None else filters[:, rows],
            _part(laws, rows),
            tolerance,
        )
        some.take(ids[rows], peaks[rows], _part(logits, rows))
        some.draw(uniforms)
        return some.stops, some.next_ids

    def _read_fault(self) -> Fault:
        code, row, node = self._fault.tolist()
        return Fault(FaultCode(code), row, node)


def _part(values: Any, rows: Rows) -> Any:
    return None if values is None else values[rows]


def _are_uniforms(numbers: NDArray[Any], batch: int) -> bool:
    """Tell whether numbers are ``[B, 2]`` float64 on [0, 1)."""
    is_within = bool(((numbers >= 0) & (numbers < 1)).all())
    return is_within and numbers.shape == (batch, 2) and numbers.dtype == np.float64


def _laws(laws: Laws, sizes: dict[str, int], nodes: int) -> Any:
    """Return the structure ``Laws``."""
    rows, size = laws.table.shape
    table, floats = (laws.table, kind_of(laws.table)) if rows else (None, None)
    more = {"nodes": nodes, "rows": rows, "size": size}
    return _Laws.of(sizes | more, floats, table=table, index=laws.index, point=laws.point)
