"""Draft with the first source that has something to say."""

from collections.abc import Sequence

import numpy as np

from specdec.contracts import Budget, Context, Draft, DraftSession, IntArray, Offers, Randomness
from specdec.drafting import Combination, member_stream, proposal
from specdec.transfers import on_host


class Cascade(Combination):
    """Ask several sources in turn, per row, and take the first draft that is not empty.

    A later source is not asked for rows that an earlier one served: a model after a lookup works only for the rows that
    the lookup leaves. ``Draft.source`` says who proposed each node. Scouts are a draft too: after a ``Lookahead`` with
    a window no other member is asked (use ``Merged`` there).

    Args:
        members: two sources or more, combinations too, cheapest first.

    Raises:
        ValueError: see ``Combination``; if a member branches, the engine refuses rules that judge chains only.

    Guarantee: lossless if its members are: it is known who drafts before a later member draws anything, and no drawn
        token is dropped. Reproducible if all members are.
    Cost: per row the proposals up to the one that is taken. A model that has not been asked for a while catches up with
        all ids since. One host synchronisation per member but the last, to see who drafted nothing, and one more if two
        drafted.
    """

    kind = "cascade"

    @property
    def offers(self) -> Offers:
        """What it declares."""
        offers = [member.offers for member in self.members]
        return self._offers(any(offer.trees for offer in offers), max(offer.max_nodes for offer in offers))

    def drafts(
        self,
        sessions: Sequence[DraftSession],
        rows: IntArray,
        context: Context,
        budget: Budget,
        randomness: Randomness,
    ) -> list[Draft]:
        """Return the draft of each member; a later one is asked for the rows in which all before it drafted nothing.

        Arguments as in ``Combination.drafts``.
        """
        parts: list[Draft] = []
        silent = np.flatnonzero(np.minimum(budget.max_depth, budget.max_nodes) > 0)
        for i, (member, session) in enumerate(zip(self.members, sessions, strict=True)):
            if i and not silent.size:
                parts.append(Draft.empty(len(rows), parts[0].tokens.device))
                continue
            asked = silent if i else np.arange(len(rows))
            some = Budget(budget.max_depth[asked], budget.max_nodes[asked])
            streams = member_stream(randomness, i).select(asked)
            draft = proposal(member, session, rows[asked], context.select(asked), some, streams)
            parts.append(draft.scatter_rows(asked, len(rows)))
            if i + 1 < len(sessions):
                silent = silent[on_host(parts[-1].num_nodes)[silent] == 0]
        return parts
