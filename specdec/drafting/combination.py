"""Sources made of other sources: their needs and offers together, and how their sessions learn which ids stand."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from specdec.contracts import (
    Budget,
    Context,
    Draft,
    DraftPrefixes,
    DraftSession,
    DraftSource,
    IntArray,
    Needs,
    Offers,
    Oracle,
    Randomness,
    Scores,
    check_source,
    check_tensors,
    close_session,
    share_prefixes,
)
from specdec.drafting.merging import merge


class Combination(ABC):
    """A source whose drafts are put together from those of its members.

    Args:
        members: two sources or more, in the order in which they are asked.

    Raises:
        ValueError: fewer members, one that is not a source, members with different vocabularies, or one that needs more
            of the target than logits and hidden layers.
    """

    kind: str

    def __init__(self, members: Sequence[DraftSource]) -> None:
        if isinstance(members, str) or not isinstance(members, Iterable):
            raise ValueError("members must be a list of draft sources; wrap a single one in a list with others")
        self.members = tuple(members)
        for i, member in enumerate(self.members):
            check_source(member, f"members[{i}]")
        if len(self.members) < 2:
            raise ValueError(f"members: {self.kind} needs two sources or more, not {len(self.members)}")
        for member in self.members:
            check_servable(member, self.name)
        sizes = {member.vocab_size for member in self.members} - {None}
        if len(sizes) > 1:
            raise ValueError(f"the members of {self.name!r} draft from vocabularies of different sizes: {sizes}")
        self.vocab_size: int | None = next(iter(sizes), None)

    @property
    def name(self) -> str:
        """Its kind, and the names of its members."""
        return f"{self.kind}({', '.join(member.name for member in self.members)})"

    @property
    def needs(self) -> Needs:
        """What any member needs."""
        asking = [member.needs for member in self.members if member.needs.logits or member.needs.hidden]
        layers = tuple(dict.fromkeys(layer for needs in asking for layer in needs.hidden))
        return Needs(any(needs.logits for needs in asking), layers, any(needs.prompt for needs in asking))

    @property
    @abstractmethod
    def offers(self) -> Offers:
        """What it declares."""

    def _offers(self, trees: bool, max_nodes: int) -> Offers:
        offers = [member.offers for member in self.members]
        return Offers(
            trees=trees,
            laws=any(offer.laws for offer in offers),
            confidence=all(offer.confidence for offer in offers),
            reproducible=all(offer.reproducible for offer in offers),
            adaptive=any(offer.adaptive for offer in offers),
            nested=all(offer.nested for offer in offers),
            calibration=next((offer.calibration for offer in offers if offer.calibration is not None), None),
            max_depth=max(offer.max_depth for offer in offers),
            max_nodes=max_nodes,
        )

    @abstractmethod
    def drafts(
        self,
        sessions: Sequence[DraftSession],
        rows: IntArray,
        context: Context,
        budget: Budget,
        randomness: Randomness,
    ) -> list[Draft]:
        """Return a draft of all rows by each member, within the budget together; empty if a member is not asked.

        Args:
            sessions: of the members.
            rows: ``[B]``.
            context: of those rows.
            budget: of those rows.
            randomness: member i draws from ``member_stream(randomness, i)``.
        """

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> "CombinationSession":
        """Return a session for a run; arguments as in ``DraftSource.open``."""
        sessions = [member.open(oracle, num_rows, capacity) for member in self.members]
        return CombinationSession(self, sessions, num_rows)


def check_servable(source: DraftSource, owner: str) -> None:
    """Raise ValueError if a source needs more of its target than scores: only the engine can give it that."""
    if source.needs.cache_of is not None:
        raise ValueError(
            f"draft {source.name!r} cannot serve inside {owner!r}: it drafts on the target's cache, which the engine "
            "hands to the decoder's own draft only; pass it as the draft itself"
        )


def proposal(
    source: DraftSource,
    session: DraftSession,
    rows: IntArray,
    context: Context,
    budget: Budget,
    randomness: Randomness,
) -> Draft:
    """Return the draft of a source that serves inside another; it may write to its arrays, which are copies.

    Args:
        source: the source.
        session: of that source.
        rows, context, budget, randomness: see ``DraftSession.propose``.

    Raises:
        ValueError: the draft is malformed; names the source.
    """
    own = replace(context, ids=context.ids.copy(), num_committed=context.num_committed.copy())
    room = Budget(budget.max_depth.copy(), budget.max_nodes.copy())
    draft = session.propose(rows.copy(), own, room, randomness)
    check_tensors(source, draft, len(rows))
    return draft


def member_stream(randomness: Randomness, member: int) -> Randomness:
    """Return the streams of a member: no two members share a number."""
    return randomness.extend(f"member {member}")


class CombinationSession(DraftSession):
    """The members of a combination at work on one run.

    Every member is told what stands; one that asked for scores is handed those of its own nodes, in its own order. One
    that reads hidden layers is handed those of the nodes that stand too, whoever drafted them: ``Scores.path`` finds
    them.
    """

    def __init__(self, source: Combination, sessions: Sequence[DraftSession], num_rows: int) -> None:
        self.source, self.sessions = source, sessions
        # The row's place in the batch that drafted last; -1: it took no part since it was told what stands.
        self._at = np.full(num_rows, -1, dtype=np.int64)
        # See merge; the last row, which -1 finds, has no nodes.
        self._places = [np.zeros((1, 1), dtype=np.int64) for _ in sessions]

    def share(self, prefixes: DraftPrefixes) -> None:
        """Let the models of all members share prompts; see ``DraftSession.share``."""
        for session in self.sessions:
            share_prefixes(session, prefixes)

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """Tell every member, with the scores that it needs; see ``DraftSession.begin``."""
        for member, session in enumerate(self.sessions):
            own = [prompt.copy() for prompt in prompts]
            session.begin(rows.copy(), own, self._needed_scores(member, scores))

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """Return the drafts of the members as one; see ``DraftSession.propose`` and ``Combination.drafts``."""
        parts = self.source.drafts(self.sessions, rows, context, budget, randomness)
        draft, places = merge(parts, [member.name for member in self.source.members])
        self._places = [np.pad(place, ((0, 1), (0, 0))) for place in places]
        self._at[rows] = np.arange(len(rows))
        return draft

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        """Tell every member, with the scores of its own nodes; see ``DraftSession.sync``."""
        for member, session in enumerate(self.sessions):
            own = self._needed_scores(member, scores)
            if own is not None:
                own = _of_nodes(own, self._places[member][self._at[rows]])
            session.sync(rows.copy(), keep.copy(), new_ids.copy(), own)
        self._at[rows] = -1

    def end(self, rows: IntArray) -> None:
        """Tell every member; see ``DraftSession.end``."""
        for session in self.sessions:
            session.end(rows.copy())

    def close(self) -> None:
        """Close the sessions of all members; see ``DraftSession.close``."""
        for session in self.sessions:
            close_session(session)

    def _needed_scores(self, member: int, scores: Scores | None) -> Scores | None:
        """Return the scores that a member needs, None if it needs none."""
        needs, layers = self.source.members[member].needs, self.source.needs.hidden
        if scores is None or not (needs.logits or needs.hidden):
            return None
        hidden = tuple(scores.hidden[layers.index(layer)] for layer in needs.hidden)
        logits, likeliest = (scores.logits, scores.likeliest) if needs.logits else (None, None)
        return Scores(logits, hidden, likeliest, scores.path if needs.hidden else None)


def _of_nodes(scores: Scores, nodes: IntArray) -> Scores:
    """Return the scores of a member's nodes ``[B, K]``, and after them those of the path, if it reads hidden layers.

    Other members may have drafted what stands: their nodes are not among its own. A shared budget may have dropped the
    ends of chains: nodes beyond those that were scored cannot stand, and their scores are arbitrary.
    """
    given = (scores.logits, *scores.hidden, *(scores.likeliest or ()))
    nodes = np.minimum(nodes, next(values.shape[1] for values in given if values is not None) - 1)
    if scores.path is None:
        return scores.gather(nodes)
    path = np.tile(nodes.shape[1] + np.arange(scores.path.shape[1]), (len(nodes), 1))
    return replace(scores.gather(np.concatenate([nodes, scores.path], axis=1)), path=path)
