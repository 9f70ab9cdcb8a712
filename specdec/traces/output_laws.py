"""What a source's laws gave to the tokens that an output took, position by position."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specdec.contracts import Budget, Draft, FloatArray, IntArray
from specdec.laws import Laws
from specdec.traces.dense import Path_, places_of
from specdec.traces.siblings import NUM_ESTIMATES, acceptance_with_replacement, acceptance_without_replacement


def fault_of_nodes(draft: Draft, budget: Budget, paths: tuple[Path_, ...]) -> str | None:
    """Return in what way drafts have other nodes than a plan within the budget; None: in none.

    A node may be absent if its parent is, or if the law that it is drawn from without its elder siblings has no id
    left: that follows from the law and the draws. Other absences would be the source's choice, for unknown reasons.

    Args:
        draft: ``[B, N]``.
        budget: of the rows.
        paths: of the nodes of a whole draft, level by level.
    """
    limits = zip(budget.max_depth.tolist(), budget.max_nodes.tolist(), strict=True)
    trees = zip((draft.tree.above - 1).tolist(), draft.num_nodes.tolist(), strict=True)
    for row, ((parents, count), (depth, size)) in enumerate(zip(trees, limits, strict=True)):
        places = places_of(parents[:count])
        planned = [path for path in paths if len(path) <= depth][:size]
        if set(places) - set(planned):
            return "drafts other trees than were asked for"
        for path in planned:
            if path in places or (len(path) > 1 and path[:-1] not in places):
                continue
            elder = places.get((*path[:-1], path[-1] - 1))
            if path[-1] == 0 or (elder is not None and not _is_exhausted(draft, row, elder, path[-1])):
                return "ends drafts by itself"
    return None


def _is_exhausted(draft: Draft, row: int, elder: int, rank: int) -> bool:
    """Tell whether the law of a node's last sibling has no more than ``rank`` ids; that of chosen ones is unknown."""
    law = draft.node_laws[row : row + 1, elder]
    if int(law.index) < 0:
        return True
    return draft.without_replacement is not None and int(law.dense().count_nonzero()) <= rank


def fault_of_siblings(draft: Draft) -> str | None:
    """Return in what way the siblings of drafts ``[B, N]`` are more than draws from one law; None: in none."""
    laws, is_real = draft.node_laws, draft.tree.is_real[:, 1:]
    is_drawn = (laws.index >= 0) & is_real
    if draft.without_replacement is not None and not bool(draft.without_replacement[is_drawn].all()):
        return "draws some of its siblings with replacement, and others without"
    above = draft.tree.above
    elder = (above.unsqueeze(2) == above.unsqueeze(1)).long().argmax(2)  # [B, N] each node's first sibling
    first = laws.index.gather(1, elder)
    for row, node in np.argwhere(((first != laws.index) & is_real).cpu().numpy()).tolist():
        if not _is_same(laws, int(first[row, node]), int(laws.index[row, node])):
            return "draws the siblings of one node from several laws"
    return None


def _is_same(laws: Laws, one: int, other: int) -> bool:
    """Tell whether two rows of a table are equal; -1 is a point mass, and no row."""
    return min(one, other) >= 0 and torch.equal(laws.table[one], laws.table[other])


# By rule: the probability [P] that a token of the output was drafted and accepted in a step that reaches it, from its p
# and q, of chains. Under each of them a token drafted from a point mass stands if and only if the output has it.
ACCEPTED: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "standard": lambda p, q: np.minimum(1, q / p),
    "multi_draft": lambda p, q: np.minimum(1, q / p),  # with one child a node it is the standard rule
    "sample_and_match": lambda p, q: q,
}
# By rule for trees: the law [V] that siblings are offered to, from the target's and the output's token (siblings.py).
_OFFERED: dict[str, Callable[[FloatArray, int], FloatArray]] = {
    "multi_draft": lambda target, token: target,
    "sample_and_match": lambda target, token: np.eye(1, len(target), token)[0],
}
# Two passes of a drafting model may differ in their last bits.
_RTOL, _ATOL = 1e-4, 1e-6


@dataclass
class _Tree:
    """The draft of one row, on the host but for its laws.

    Attributes:
        tokens, parents: of the nodes, parents -1 for the pending token.
        laws: ``[N]`` that they were drawn from.
        place: the node that the output has reached; -1: the pending token.
        age: tokens of the draft that the output has taken.
    """

    tokens: list[int]
    parents: list[int]
    laws: Laws
    place: int = -1
    age: int = 0

    @property
    def children(self) -> list[int]:
        """The nodes below the place that the output has reached, in drawing order."""
        return [node for node, parent in enumerate(self.parents) if parent == self.place]

    def goes_on(self, token: int) -> bool:
        """Move on by the token that the output takes; tell whether the draft has more to compare."""
        onward = [node for node in self.children if self.tokens[node] == token]
        self.place, self.age = onward[0] if onward else len(self.tokens), self.age + 1
        return bool(self.children)


def _own(laws: Laws) -> Laws:
    """Return the laws of one row with a table of their own: a part of a step's would keep all of it."""
    if laws.all_points:
        return laws
    used, places = np.unique(laws.index.clamp(min=0).cpu().numpy(), return_inverse=True)
    at, device = torch.from_numpy(places.reshape(-1)), laws.index.device
    return Laws(laws.table[torch.from_numpy(used).to(device)], at.to(device).where(laws.index >= 0, -1), laws.point)


class OutputLaws:
    """Gathers what drafts gave to each output token: its probability, and which sibling it was accepted as.

    Only the law of the first children of each draft is read. It holds at every depth if the source draws from a law
    that the ids alone decide. That is checked: if the output takes a draft's tokens, the draft's laws are compared
    with those of the drafts that begin later. (A source that drafts on the oracle's cache with other weights fails:
    the keys of a draft are not those of the output.)

    Args:
        paths: of the nodes of a whole draft.
        rule: by which siblings would be judged.
        name: of the source, for messages.

    Attributes:
        q: of each step, ``[B]``; 0 where nothing was drafted.
        by_rank: of each step, ``[B, E, R]``, see ``DenseRecords``; 0 if no node has a sibling.
        fault: why q does not stand for the laws at other depths; None: it does.
        says_q: whether the confidence of every drawn token is its probability.
    """

    def __init__(self, paths: tuple[Path_, ...], rule: str, name: str) -> None:
        self.paths, self.rule, self.name = paths, rule, name
        self.num_ranks = 1 + max((path[-1] for path in paths), default=0)
        self.q: list[FloatArray] = []
        self.by_rank: list[FloatArray] = []
        self.fault: str | None = None
        self.says_q = True
        self._draft: Draft
        self._pasts: dict[int, list[_Tree]] = {}
        self._generator = np.random.default_rng(0)

    @property
    def branches(self) -> bool:
        """Whether a node of a draft has siblings: then the target's laws are needed."""
        return self.num_ranks > 1

    def begin(self, rows: IntArray) -> None:
        """Forget what slots ``rows`` ``[B]`` held."""
        self._pasts |= {row: [] for row in rows.tolist()}

    def take_draft(self, draft: Draft, budget: Budget) -> None:
        """Take in the draft of a step."""
        self._draft = draft
        if self.fault is None:
            self._find(fault_of_nodes(draft, budget, self.paths))
            if self.branches and draft.laws is not None:
                self._find(fault_of_siblings(draft))
        if draft.confidence is not None:
            drawn = (draft.node_laws.index >= 0) & draft.tree.is_real[:, 1:]
            said, own = draft.confidence[drawn].double(), draft.node_laws.probs_of(draft.tokens)[drawn]
            self.says_q &= torch.allclose(said, own, rtol=_RTOL, atol=_ATOL)

    def _find(self, fault: str | None) -> None:
        """Keep the first fault."""
        if self.fault is None and fault is not None:
            self.fault = f"draft {self.name!r} draws tokens, and {fault}: {_NO}"

    def take_outputs(self, rows: IntArray, ids: IntArray, target: Laws | None) -> None:
        """Take in the tokens ``[B]`` that the output takes after the drafts of the step.

        Args:
            rows: ``[B]`` slots.
            ids: ``[B]``.
            target: ``[B]`` the target's laws; None if no node has siblings that were drawn.
        """
        draft, laws = self._draft, self._draft.node_laws
        q, by_rank = np.zeros(len(rows)), np.zeros((len(rows), NUM_ESTIMATES, self.num_ranks))
        counts, parents = draft.num_nodes.tolist(), (draft.tree.above - 1).tolist()
        for b, row in enumerate(rows.tolist()):
            token, count = int(ids[b]), counts[b]
            if count and self.fault is None:
                tree = _Tree(draft.tokens[b, :count].tolist(), parents[b][:count], _own(laws[b, :count]))
                q[b] = _prob(tree.laws[:1], token)
                self._compare(self._pasts[row], token, float(q[b]))
                if self.branches:
                    by_rank[b] = self._of_ranks(tree, token, None if target is None else target[b : b + 1])
                self._pasts[row].append(tree)
            self._pasts[row] = [past for past in self._pasts[row] if past.goes_on(token)]
        self.q.append(q)
        self.by_rank.append(by_rank)

    def _compare(self, pasts: Sequence[_Tree], token: int, q: float) -> None:
        """Compare what earlier drafts gave to a token with what the draft that begins there gives."""
        for past in pasts:
            child = past.children[0]
            earlier = _prob(past.laws[child : child + 1], token)
            if not np.isclose(earlier, q, rtol=_RTOL, atol=_ATOL):
                self._find(
                    f"gave token {token} the probability {earlier:.3g} at depth {past.age + 1} of a draft and "
                    f"{q:.3g} at the beginning of another after the same ids"
                )

    def _of_ranks(self, tree: _Tree, token: int, target: Laws | None) -> FloatArray:
        """Return ``[E, R]`` or ``[R]`` how likely the token was accepted as the sibling of each rank."""
        first = tree.children
        if int(tree.laws.index[0]) < 0:
            if len(first) < self.num_ranks:
                self._find(f"chose {len(first)} siblings after the pending token, of {self.num_ranks} elsewhere")
            found = np.zeros(self.num_ranks)
            found[: len(first)] = [tree.tokens[node] == token for node in first]
            return found
        assert target is not None
        drawn = _probs(tree.laws[:1])
        offered = _OFFERED[self.rule](_probs(target, len(drawn)), token)
        if self._draft.without_replacement is None:
            return acceptance_with_replacement(offered, drawn, token, self.num_ranks)
        return acceptance_without_replacement(offered, drawn, token, self.num_ranks, self._generator)


_NO = (
    "no dense record of a sampled run that is not coupled, whose expectations need laws that the ids alone decide; "
    "record with rule='coupled'"
)


def _prob(law: Laws, token: int) -> float:
    """Return the probability of an id under one law ``[1]``."""
    return float(law.probs_of(torch.tensor([token], device=law.point.device)))


def _probs(law: Laws, vocab_size: int | None = None) -> FloatArray:
    """Return ``[V]`` the probabilities of one law ``[1]``, in float64 and of sum 1."""
    dense: FloatArray = law.dense(vocab_size)[0].double().cpu().numpy()
    whole: FloatArray = dense / dense.sum()
    return whole
