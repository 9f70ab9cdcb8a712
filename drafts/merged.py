"""Draft with several sources at once: their trees side by side, judged in one pass."""

from collections.abc import Sequence

import numpy as np

from specdec.contracts import Budget, Context, Draft, DraftSession, IntArray, Offers, Randomness
from specdec.drafting import Combination, member_stream, proposal


class Merged(Combination):
    """Put the drafts of several sources into one tree per row.

    The members draft independently of each other. Their trees hang side by side on the pending token, in the order of
    the members. If an earlier sibling already carries the token of a deterministic node, the two become one. So two
    lookups that agree cost the nodes of one, and a lookup goes on from the nodes of a model that it agrees with.
    ``Draft.source`` says who proposed each node (for a joint node: the first member).

    Args:
        members: two sources or more, combinations too; the rule is offered the first one's nodes first. Each member may
            use the part of a row's node budget that those before it do not offer to fill.

    Raises:
        ValueError: see ``Combination``; the engine refuses rules that judge chains only.

    Guarantee: lossless under rules that judge trees. Every member draws from its own streams, and no drawn token is
        merged or dropped; ``without_replacement`` counts siblings by the same member only. Reproducible if all
        members are.
    Cost: the sum of the members' proposals; a scoring pass as wide as the longest merged row. If two members drafted,
        one host synchronisation, which keeps the pass that narrow, and O(B N) host work per node of all members but the
        first.
    Source: Miao et al. 2024 (SpecInfer, arXiv 2305.09781), the merge of trees by several speculators.
    Deviations: drawn nodes that carry equal ids stay apart, because a merged one would declare a wrong law.
    """

    kind = "merged"

    @property
    def offers(self) -> Offers:
        """What it declares."""
        return self._offers(trees=True, max_nodes=sum(member.offers.max_nodes for member in self.members))

    def drafts(
        self,
        sessions: Sequence[DraftSession],
        rows: IntArray,
        context: Context,
        budget: Budget,
        randomness: Randomness,
    ) -> list[Draft]:
        """Return the draft of each member, within its share of the nodes; arguments as in ``Combination.drafts``."""
        parts, left = [], np.maximum(budget.max_nodes, 0)
        for i, (member, session) in enumerate(zip(self.members, sessions, strict=True)):
            share = np.minimum(left, member.offers.max_nodes)
            left = left - share
            own, stream = Budget(budget.max_depth, share), member_stream(randomness, i)
            parts.append(proposal(member, session, rows, context, own, stream))
        return parts
