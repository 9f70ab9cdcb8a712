"""Verdicts on nodes that are offered one after the other, from compiled code."""

from torch import Tensor

from specdec.contracts import Draft, Verdict
from specdec.laws import Laws
from specdec.native import Offered, compiled_verdicts


def compiled_verdict(draft: Draft, target: Laws) -> Verdict | None:
    """Return the verdict on a draft, from a call for the stops and one for what follows.

    None if compiled code cannot be had, or does not take the draft: see ``Offered.takes``.
    """
    native, drawn, above = compiled_verdicts(), draft.laws, draft.tree.above if draft.parents is not None else None
    laws = target.table, target.index, target.point
    offers = Offered(
        draft.tokens,
        draft.num_nodes,
        None if drawn is None else (drawn.table, drawn.index, drawn.point),
        above,
        draft.is_scout,
        draft.without_replacement,
        draft.source,
    )
    if native is None or not offers.takes(laws):
        return None

    def next_law(stop: Tensor) -> Laws:
        return Laws.from_probs(native.next_laws(laws, offers, stop))

    return Verdict(Laws.from_probs(native.stops(laws, offers)), draft.width + 1, next_law)
