"""Look at drafts as they are made: their form, and whether every token follows the law declared for it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import (
    Budget,
    ChainKeys,
    Draft,
    FloatArray,
    IntArray,
    Offers,
    OpenVerdict,
    Randomness,
    ancestors_of,
    form_fault,
    is_chain,
)
from specdec.laws import Laws

Findings = Iterator[tuple[int, str]]
_SAME = 1e-5  # total variation of laws that count as equal: a model's may depend on the batch, by rounding
_ONE_LAW = 1e-12  # of a law that is computed twice in float64
_IDLE = "rows at their limit must not draw: select the others, or give these point masses"
_AS_POINT = (
    "lossless where no draft of the source declares a law, but rejected more often than if this law were declared"
)


@dataclass
class Draw:
    """One call of ``choose``, one row, one law.

    Attributes:
        law: ``[V]`` float64.
        ids: the ids drawn, in drawing order.
        purpose: as named by the source.
        name: what its number is keyed by: the stream's path, the purpose, the node.
        used: ranks that a node of the draft stands for.
    """

    law: Tensor
    ids: list[int]
    purpose: str
    name: tuple[str | int, ...]
    used: set[int] = field(default_factory=set)

    def off(self, law: Tensor) -> float:
        """Return the total variation from a law ``[V]``; infinite if it is one of something else, such as stops."""
        return float((self.law - law).abs().sum()) / 2 if self.law.shape == law.shape else math.inf


@dataclass(frozen=True)
class DrawRecorder(Randomness):
    """Randomness that keeps what is drawn from laws with more than one id, also in the streams that it hands on.

    Args:
        inner: draws.
        rows: ``[B]`` the rows of the whole batch that this object serves.
        draws: collects the draws of each row of the whole batch.
        path: parts by which the streams were extended.
        compiled: collects the rows of the whole batch whose numbers compiled code was given, which then draws unseen;
            None: it is given none, so that every draw is made by ``choose``.
    """

    inner: Randomness
    rows: IntArray
    draws: list[list[Draw]]
    path: tuple[str | int, ...] = ()
    compiled: set[int] | None = None

    @property
    def coupled(self) -> bool:
        """Whether draws are keyed by absolute position alone."""
        return self.inner.coupled

    def numbers(self) -> Iterator[IntArray]:
        """Yield the arrays ``[B]`` of the host that draws on a device read."""
        return self.inner.numbers()

    def select(self, rows: IntArray) -> "DrawRecorder":
        """Return the streams of ``rows``, ``[b]`` indices into this batch."""
        return replace(self, inner=self.inner.select(rows), rows=self.rows[rows])

    def extend(self, part: str | int) -> "DrawRecorder":
        """Return streams of their own for a stage, a member or an inner step."""
        return replace(self, inner=self.inner.extend(part), path=(*self.path, part))

    def choose(self, laws: Laws, node: Any, depth: Any, purpose: str, k: int = 1) -> Tensor:
        """Draw an id per law of shape S, or ``k`` distinct ids ``S + [k]`` in drawing order."""
        drawn = self.inner.choose(laws, node, depth, purpose, k)
        if laws.all_points or not laws.shape.numel():
            return drawn
        table = laws.dense().double()
        probs = table.reshape(len(self.rows), -1, table.shape[-1])
        ids = drawn.reshape(*probs.shape[:2], -1).tolist()
        nodes = np.broadcast_to(np.asarray(node), tuple(laws.shape)).reshape(*probs.shape[:2]).tolist()
        for b, column in (probs.amax(-1) < 1).nonzero().tolist():
            kept = [token for token in ids[b][column] if token >= 0]
            name = (*self.path, purpose, nodes[b][column])
            self.draws[self.rows[b]].append(Draw(probs[b, column], kept, purpose, name))
        return drawn

    def chain_keys(self, purpose: str) -> ChainKeys | None:
        """Return the keys of the streams, see ``Randomness.chain_keys``; None if every draw is kept."""
        keys = None if self.compiled is None else self.inner.chain_keys(purpose)
        self._note(keys is not None)
        return keys

    def verdict_numbers(
        self, num_rows: int, verdict: OpenVerdict, purposes: tuple[str, str] = ("stop", "next")
    ) -> IntArray | FloatArray | None:
        """Return the numbers of ``[B]`` streams, see ``Randomness.verdict_numbers``; None if every draw is kept."""
        numbers = None if self.compiled is None else self.inner.verdict_numbers(num_rows, verdict, purposes)
        self._note(numbers is not None)
        return numbers

    def _note(self, are_given: bool) -> None:
        if self.compiled is not None and are_given:
            self.compiled.update(self.rows.tolist())


def form_findings(draft: Draft, budget: Budget, offers: Offers, vocab_size: int) -> Findings:
    """Yield (row, fault) for everything in a draft's form that breaks the contract of ``Draft`` or ``Offers``."""
    fault = form_fault(draft, len(budget.max_depth))
    if fault is not None:
        yield 0, fault
        return
    width = draft.width
    for b in ((draft.num_nodes < 0) | (draft.num_nodes > width)).nonzero().flatten().tolist():
        yield b, f"num_nodes {int(draft.num_nodes[b])} does not lie in 0..{width}"
        return
    for b in ((draft.tokens < 0) | (draft.tokens >= vocab_size)).any(1).nonzero().flatten().tolist():
        yield b, f"an id (padding included) lies outside 0..{vocab_size - 1}"
    if draft.confidence is not None:
        for b in (~((draft.confidence >= 0) & (draft.confidence <= 1))).any(1).nonzero().flatten().tolist():
            yield b, "a confidence lies outside 0..1"
    yield from _tree_findings(draft, budget, offers)


def _tree_findings(draft: Draft, budget: Budget, offers: Offers) -> Findings:
    """Yield the faults of parents, depths, sizes and scouts."""
    if not offers.trees and (draft.is_scout is not None or not is_chain(draft.parents)):
        yield 0, "the draft branches or has scouts, and offers.trees is False"
    for b, size in enumerate(draft.num_nodes.tolist()):
        parents = draft.tree.above[b, :size].cpu() - 1
        if bool(((parents < -1) | (parents >= torch.arange(size, device="cpu"))).any()):
            yield b, f"a parent is no smaller index: {parents.tolist()}"
            continue
        if offers.paths is not None and size == len(offers.paths) and _rank_paths(parents.tolist()) != {*offers.paths}:
            yield b, f"a whole draft is another tree than offers.paths: parents {parents.tolist()}"
        above = ancestors_of(parents.unsqueeze(0))[0]
        depth = int(above.sum(-1).max()) if size else 0
        limits = {"depth": (depth, int(budget.max_depth[b])), "nodes": (size, int(budget.max_nodes[b]))}
        limits |= {"depth offered": (depth, offers.max_depth), "nodes offered": (size, offers.max_nodes)}
        yield from ((b, f"{name} {is_} where {may} is the limit") for name, (is_, may) in limits.items() if is_ > may)
        if draft.is_scout is not None:
            scouts = draft.is_scout[b, :size].cpu()
            if bool(((above & scouts).any(-1) & ~scouts).any()):
                yield b, "a scout has a verified descendant"


def _rank_paths(parents: list[int]) -> set[tuple[int, ...]]:
    """Return the nodes of a tree, each as the ranks of the siblings on its path."""
    paths: list[tuple[int, ...]] = []
    for node, parent in enumerate(parents):
        before = () if parent < 0 else paths[parent]
        paths.append((*before, parents[:node].count(parent)))
    return {*paths}


def honesty_findings(draft: Draft, draws: list[list[Draw]], offers: Offers, vocab_size: int) -> Findings:
    """Yield (row, fault) for each node whose token was drawn from another law than declared, and for each lost draw.

    Every node with a real law is matched with a draw of its token from that law; every draw must be matched by a node,
    because dropping drawn tokens biases the output. What an inner verdict decided cannot be matched: for such a node
    only the law's form is checked, and that something was drawn. In drafts with such nodes, or with stages, a draw
    may have another purpose than "draft", and no node. So may one whose law is not of ``vocab_size`` ids: a length.
    """
    for b, size in enumerate(draft.num_nodes.tolist()):
        laws = draft.node_laws[b, :size]
        for node, token in enumerate(draft.tokens[b, :size].tolist()):
            if draft.laws is None or int(laws.index[node]) < 0:
                if draft.laws is not None and int(laws.point[node]) != token:
                    yield b, f"node {node} holds id {token}, its law is a point mass on {int(laws.point[node])}"
                continue
            law = laws.table[int(laws.index[node])].double()
            if draft.decided is not None and bool(draft.decided[b, node]):
                fault = _law_fault(law, token) or (None if draws[b] else "decided, but nothing was drawn in this step")
            else:
                fault = _law_fault(law, token) or _match(law, token, _elder_of(draft, b, node), draws[b])
            yield from [(b, f"node {node}: {fault}")] if fault else []
        has_laws = draft.laws is not None and bool((laws.index >= 0).any())
        if has_laws and not offers.laws:
            yield b, "a node declares a real law, and offers.laws is False"
        points = set() if has_laws else set(draft.tokens[b, :size].tolist())
        has_inner = draft.decided is not None or bool(draft.stages)
        yield from _draws_without_node(b, draws[b], points, has_inner, vocab_size)


def _elder_of(draft: Draft, row: int, node: int) -> int | None:
    """Return the drawn id that was removed last from a node's law; -1 if none was, None if the node says so of none."""
    if draft.without_replacement is None or not bool(draft.without_replacement[row, node]):
        return None
    above, laws = draft.tree.above[row], draft.node_laws[row]
    source = torch.zeros_like(above) if draft.source is None else draft.source[row]
    is_elder = (above[:node] == above[node]) & (source[:node] == source[node]) & (laws.index[:node] >= 0)
    if draft.decided is not None:  # the law of a sibling of such a node lacks its id already
        is_elder &= ~draft.decided[row, :node]
    elders = is_elder.nonzero().flatten().tolist()
    return int(draft.tokens[row, elders[-1]]) if elders else -1


def _law_fault(law: Tensor, token: int) -> str | None:
    """Return what is wrong with a law ``[V]`` as such."""
    total = float(law.sum())
    if bool((law < 0).any()) or abs(total - 1) > 1e-5 or not float(law[token]) > 0:
        return f"its law sums to {total:.6g} and gives its own id {token} the probability {float(law[token]):.3g}"
    return None


def _match(law: Tensor, token: int, elder: int | None, draws: list[Draw]) -> str | None:
    """Mark the draw that a node stands for; return what is wrong if there is none. ``elder``: see ``_elder_of``."""
    if float(law.max()) == 1.0:
        return None
    found = [
        (draw, rank)
        for draw in draws
        for rank, drawn in enumerate(draw.ids)
        if drawn == token and rank not in draw.used and draw.off(law) <= _ONE_LAW
    ]
    if found:
        together = [(draw, rank) for draw, rank in found if elder in draw.ids[:rank]]
        draw, rank = (together or found)[0]
        draw.used.add(rank)
        if elder is None:
            return None if rank == 0 else "drawn without replacement, but not declared so"
        return (
            None if together or elder < 0 else f"declared without replacement, but id {elder} was drawn apart from it"
        )
    off = min((draw.off(law) for draw in draws if token in draw.ids), default=math.inf)
    return f"id {token} was never drawn from the law declared for it" + (
        "" if off == math.inf else f"; the law it was drawn from differs by a total variation of {off:.3g}"
    )


def _draws_without_node(row: int, draws: list[Draw], points: set[int], has_inner: bool, vocab_size: int) -> Findings:
    """Yield the draws for the draft that no node stands for; ``points``: ids of nodes if none has a real law.

    A law of another width than the vocabulary's, under another purpose, is of something else than a token: a length.
    """
    for draw in draws:
        for rank, token in enumerate(draw.ids):
            if rank in draw.used or (draw.purpose != "draft" and (has_inner or len(draw.law) != vocab_size)):
                continue
            if token in points:
                yield row, f"id {token} was drawn, and stands as a point mass: {_AS_POINT}"
            else:
                yield row, f"id {token} was drawn and then dropped, or stands in the draft under another law; {_IDLE}"


def name_findings(draws: list[list[Draw]]) -> Findings:
    """Yield (row, fault) for draws under a name that another draw of the step has: both read the same number."""
    for row, own in enumerate(draws):
        names = [draw.name for draw in own]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            *path, purpose, node = name
            within = f" of the stream {'/'.join(map(str, path))}" if path else ""
            fix = "give each node its own index, or extend the stream"
            yield row, f"two draws have one name{within}, purpose {purpose!r} and node {node}, and so one number: {fix}"


def draft_difference(first: Draft, row: int, second: Draft, other: int, vocab_size: int) -> str | None:
    """Return how row ``other`` of the second draft differs from row ``row`` of the first; None: it does not.

    Ids, trees and what is said of nodes are compared, and laws up to a total variation of 1e-5.
    """
    sides = [(draft, at, int(draft.num_nodes[at])) for draft, at in ((first, row), (second, other))]
    wanted, found = (draft.tokens[at, :size].tolist() for draft, at, size in sides)
    if found != wanted:
        return f"its ids are {found}, not {wanted}"
    trees = [draft.tree.above[at, :size] for draft, at, size in sides]
    if not torch.equal(*trees):
        return "its ids stand in another tree"
    for name in ("without_replacement", "is_scout", "decided"):
        flags = [getattr(draft, name) for draft, _, _ in sides]
        were, are = (
            [False] * n if x is None else x[at, :n].tolist() for x, (_, at, n) in zip(flags, sides, strict=True)
        )
        if are != were:
            return f"its {name} is {are}, not {were}"
    laws = [draft.node_laws[at, :size].dense(vocab_size).double() for draft, at, size in sides]
    off = (laws[0] - laws[1]).abs().sum(-1) / 2
    # What is no number is no equal law either.
    if (is_off := ~(off <= _SAME)).any():
        node = int(is_off.long().argmax())
        return f"node {node} declares another law, by a total variation of {float(off[node]):.3g}"
    return None
