"""A verdict of compiled code before its numbers are drawn: its law, and what any numbers would make of it."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec.kernels.compiled.memory import Integers
from specdec.kernels.compiled.walks import DraftBuffers, Limits, NativeWalks, VerifyInputs

Rows = NDArray[np.integer[Any]]


class OpenVerdict(NamedTuple):
    """The arguments of a call of ``NativeWalks`` by whose laws B drafts are verified, but for the numbers it draws by.

    Attributes:
        rule: the name of the rule whose law it is.
        walks: calls compiled code.
        drafts, ids, peaks, limits, by: of the call.
    """

    rule: str
    walks: NativeWalks
    drafts: DraftBuffers
    ids: Integers
    peaks: NDArray[Any]
    limits: Limits
    by: VerifyInputs

    def law(self) -> tuple[NDArray[np.float64], NDArray[Any]] | None:
        """Return the law that the verdict is drawn from; see ``NativeWalks.law``."""
        return self.walks.law(self.drafts, self.ids, self.peaks, self.limits, self.by)

    def verify(self, rows: Rows, uniforms: NDArray[np.float64]) -> tuple[Integers, Integers] | None:
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
        some = _select(self, rows)
        verdict = self.walks(some.drafts, some.ids, some.peaks, some.limits, some.by._replace(numbers=uniforms))
        return None if verdict is None else (verdict.stops, verdict.next_ids)


def _select(verdict: OpenVerdict, rows: Rows) -> OpenVerdict:
    """Return the verdict on some rows (indices into this batch)."""
    drafts, by, limits = verdict.drafts, verdict.by, verdict.limits
    drawn, laws = (None if of is None else (of[0], of[1][rows], of[2][rows]) for of in (by.drawn, by.laws))
    without = None if by.without_replacement is None else by.without_replacement[rows]
    return verdict._replace(
        drafts=DraftBuffers._make(part[rows] if isinstance(part, np.ndarray) else part for part in drafts),
        ids=verdict.ids[rows],
        peaks=verdict.peaks[rows],
        limits=limits._replace(
            max_depth=limits.max_depth[rows], max_nodes=limits.max_nodes[rows], ignores_eos=limits.ignores_eos[rows]
        ),
        by=by._replace(
            logits=None if by.logits is None else by.logits[rows],
            filters=None if by.filters is None else by.filters[:, rows],
            drawn=drawn,
            laws=laws,
            without_replacement=without,
        ),
    )
