"""A verdict of compiled code before its numbers are drawn: its law, and what any numbers would make of it."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec.kernels.compiled.memory import Integers
from specdec.kernels.compiled.walks import Drafted, Judging, Limits, NativeWalks

Rows = NDArray[np.integer[Any]]


class OpenVerdict(NamedTuple):
    """The arguments of a call of ``NativeWalks`` that judges B drafts, but for the numbers that it draws by.

    Attributes:
        rule: the name of the rule whose law it is.
        walks: calls compiled code.
        drafts, ids, peaks, limits, judging: of the call.
    """

    rule: str
    walks: NativeWalks
    drafts: Drafted
    ids: Integers
    peaks: NDArray[Any]
    limits: Limits
    judging: Judging

    def law(self) -> tuple[NDArray[np.float64], NDArray[Any]] | None:
        """Return the law that the verdict is drawn from; see ``NativeWalks.law``."""
        return self.walks.law(self.drafts, self.ids, self.peaks, self.limits, self.judging)

    def decide(self, rows: Rows, uniforms: NDArray[np.float64]) -> tuple[Integers, Integers] | None:
        """Return what given numbers make of some rows.

        Args:
            rows: ``[M]`` of the batch, each as often as it is asked about.
            uniforms: ``[M, 2]`` on [0, 1): what the stop and the next token are drawn by.

        Returns:
            ``[M]`` the nodes where walks stop, and ``[M]`` the next ids. None: a row is at fault.

        Raises:
            ValueError: numbers of another shape, or outside of [0, 1).

        Cost: one call, and a copy of the logits of these rows.
        """
        some = _select(self, rows)
        judging = some.judging._replace(numbers=uniforms)
        walked = self.walks(some.drafts, some.ids, some.peaks, some.limits, judging)
        return None if walked is None else (walked.stops, walked.next_ids)


def _select(verdict: OpenVerdict, rows: Rows) -> OpenVerdict:
    """Return the verdict on some rows (indices into this batch)."""
    drafts, judging, limits = verdict.drafts, verdict.judging, verdict.limits
    sampling = np.frombuffer(judging.sampling).reshape(4, -1)[:, rows].tobytes()
    drawn = None if judging.drawn is None else (judging.drawn[0], *(part[rows] for part in judging.drawn[1:]))
    without = None if judging.without_replacement is None else judging.without_replacement[rows]
    return verdict._replace(
        drafts=Drafted._make(part[rows] if isinstance(part, np.ndarray) else part for part in drafts),
        ids=verdict.ids[rows],
        peaks=verdict.peaks[rows],
        limits=limits._replace(
            max_depth=np.frombuffer(limits.max_depth, np.int64)[rows].tobytes(),
            max_nodes=np.frombuffer(limits.max_nodes, np.int64)[rows].tobytes(),
            ignores_eos=np.frombuffer(limits.ignores_eos, np.bool_)[rows].tobytes(),
        ),
        judging=judging._replace(
            logits=judging.logits[rows], sampling=sampling, drawn=drawn, without_replacement=without
        ),
    )
