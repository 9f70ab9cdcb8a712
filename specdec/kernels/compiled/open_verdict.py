"""A verdict of compiled code before its numbers are drawn: its law, and what any numbers would make of it."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import Budget, FloatArray, IntArray, Tree
from specdec.kernels.compiled.walks import NativeWalks, PackedDrafts

Rows = NDArray[np.integer[Any]]


class OpenVerdict(NamedTuple):
    """The arguments of a call of ``NativeWalks`` by whose laws B drafts are verified, but for the numbers it draws by.

    Attributes:
        rule: the name of the rule whose law it is.
        walks: calls compiled code.
        drafts, ids, peaks, logits: of the call.
    """

    rule: str
    walks: NativeWalks
    drafts: PackedDrafts
    ids: IntArray
    peaks: NDArray[Any]
    logits: Tensor | None

    def law(self) -> tuple[FloatArray, NDArray[Any]] | None:
        """Return the law that the verdict is drawn from; see ``NativeWalks.law``."""
        return self.walks.law(self.drafts, self.ids, self.peaks, self.logits)

    def verify(self, rows: Rows, uniforms: FloatArray) -> tuple[IntArray, IntArray] | None:
        """Return what given numbers make of some rows.

        Args:
            rows: ``[M]`` of the batch, each as often as it is asked about.
            uniforms: ``[M, 2]`` on [0, 1): what the stop and the next token are drawn by.

        Returns:
            ``[M]`` the nodes where walks stop, and ``[M]`` the next ids. None: see ``NativeWalks``.

        Raises:
            Fault: a row is at fault.
            ValueError: numbers of another shape, or outside of [0, 1).

        Cost: one call, and a copy of the logits of these rows.
        """
        some = _select(self.drafts, rows)
        verdict = self.walks(some, self.ids[rows], self.peaks[rows], _part(self.logits, rows), uniforms)
        return None if verdict is None else (verdict.stops, verdict.next_ids)


def _part(values: Any, rows: Rows) -> Any:
    return None if values is None else values[rows]


def _select(packed: PackedDrafts, rows: Rows) -> PackedDrafts:
    """Return some rows (indices into this batch), packed anew."""
    draft, nodes, budget, by = packed.draft, packed.nodes, packed.budget, packed.by
    assert by is not None
    names = ("is_scout", "source", "undefined", "laws", "without_replacement")
    return PackedDrafts(
        replace(draft, **{name: _part(getattr(draft, name), rows) for name in names}),
        Tree(nodes.tokens[rows], _part(nodes.parents, rows), nodes.num_nodes[rows]),
        Budget(budget.max_depth[rows], budget.max_nodes[rows]),
        packed.ignores_eos[rows],
        packed.eos_ids,
        by._replace(filters=None if by.filters is None else by.filters[:, rows], laws=_part(by.laws, rows)),
    )
