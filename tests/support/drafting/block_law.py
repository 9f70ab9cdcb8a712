"""Integrate a rule over all drafts of a tree and all stops: the joint law of the block that it makes."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from specdec.contracts import Draft, Verdict, VerificationRule
from specdec.laws import Laws
from tests.reference.tables import Floats, law_after, sequence_law

PROMPT = (1, 2)


@dataclass(frozen=True)
class Shape:
    """A tree to draft: ``parents`` (-1 = pending token), scouts, and how each node is made.

    ``fixed[i]`` is the id of a node chosen deterministically, or None where it is drawn from the draft table.
    """

    parents: tuple[int, ...]
    fixed: tuple[int | None, ...] = ()
    scouts: tuple[int, ...] = ()
    without_replacement: bool = False

    @property
    def num_nodes(self) -> int:
        return len(self.parents)

    def path(self, node: int, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ids from the pending token (excluded) to ``node`` (-1: none)."""
        return () if node < 0 else (*self.path(self.parents[node], tokens), tokens[node])

    def depth(self) -> int:
        return max((len(self.path(i, (0,) * self.num_nodes)) for i in range(self.num_nodes)), default=0)


@dataclass(frozen=True)
class Drawn:
    """One possible draft: its tokens, its probability, and the unconditional law of every node."""

    tokens: tuple[int, ...]
    probability: float
    laws: list[Floats]


def drafts_of(shape: Shape, draft_table: Floats) -> Iterator[Drawn]:
    """Yield every draft of positive probability; siblings are drawn in order."""
    size = draft_table.shape[-1]
    choices = [range(size) if made is None else (made,) for made in shape.fixed or (None,) * shape.num_nodes]
    for tokens in itertools.product(*choices):
        probability, laws = 1.0, []
        for node, token in enumerate(tokens):
            law = law_after(draft_table, PROMPT + shape.path(shape.parents[node], tokens))
            if shape.fixed and shape.fixed[node] is not None:
                law = np.eye(size)[token]
            laws.append(law)
            probability *= _conditional(shape, node, tokens, law)[token]
        if probability > 0:
            yield Drawn(tokens, probability, laws)


def _conditional(shape: Shape, node: int, tokens: tuple[int, ...], law: Floats) -> Floats:
    """Return the law of ``node`` once its earlier siblings are known."""
    if not shape.without_replacement:
        return law
    left = law.copy()
    left[[tokens[i] for i in range(node) if shape.parents[i] == shape.parents[node]]] = 0.0
    return left / left.sum() if left.sum() > 0 else left


def as_draft(shape: Shape, drawn: list[Drawn], size: int = 3, padding: int = 1) -> Draft:
    """Return the drafts, over ``size`` ids, as rows of one batch with ``padding`` nodes of padding behind them."""
    batch, width = len(drawn), shape.num_nodes + padding
    tokens = torch.zeros(batch, width, dtype=torch.int64)
    parents = torch.full((batch, width), -1)
    is_scout = torch.zeros(batch, width, dtype=torch.bool)
    parents[:, : shape.num_nodes] = torch.tensor(shape.parents, dtype=torch.int64)
    is_scout[:, list(shape.scouts)] = True
    probs = torch.full((batch, width, size), 1.0 / size, dtype=torch.float64)
    for row, item in enumerate(drawn):
        tokens[row, : shape.num_nodes] = torch.tensor(item.tokens, dtype=torch.int64)
        probs[row, : shape.num_nodes] = torch.from_numpy(np.array(item.laws).reshape(shape.num_nodes, size))
    is_chain = shape.parents == tuple(range(-1, shape.num_nodes - 1))
    all_fixed = bool(shape.fixed) and None not in shape.fixed
    drawn_without = torch.full((batch, width), True) if shape.without_replacement else None
    return Draft(
        tokens,
        torch.full((batch,), shape.num_nodes),
        None if is_chain else parents,
        None if all_fixed else Laws.from_probs(probs),
        without_replacement=drawn_without,
        is_scout=is_scout if shape.scouts else None,
    )


def target_probs(shape: Shape, drawn: list[Drawn], table: Floats, padding: int = 1) -> torch.Tensor:
    """Return ``[B, N+1, V]``: the target's law at the pending token and after every node."""
    rows = []
    for item in drawn:
        nodes = [law_after(table, PROMPT + shape.path(node, item.tokens)) for node in range(-1, shape.num_nodes)]
        rows.append(np.stack([*nodes, *[nodes[0]] * padding]))
    return torch.from_numpy(np.stack(rows))


def block_law(rule: VerificationRule, shape: Shape, draft_table: Floats, target_table: Floats) -> Floats:
    """Return the joint law ``[V] * (depth + 1)`` of what a step emits, continued by the target where it is shorter."""
    drawn = list(drafts_of(shape, draft_table))
    length, size = shape.depth() + 1, target_table.shape[-1]
    verdict = rule(as_draft(shape, drawn, size), target_probs(shape, drawn, target_table))
    stop_probs = verdict.stop_probs
    law = np.zeros((size,) * length)
    for stop in range(shape.num_nodes + 1):
        following = verdict.next_law(torch.full((len(drawn),), stop)).dense(size).double().numpy()
        for row, item in enumerate(drawn):
            reached = item.probability * float(stop_probs[row, stop])
            for token in np.flatnonzero(following[row]) if reached > 0 else ():
                emitted = (*shape.path(stop - 1, item.tokens), int(token))
                rest = sequence_law(target_table, PROMPT + emitted, length - len(emitted))
                law[emitted] += reached * following[row, token] * rest
    assert float(stop_probs[:, shape.num_nodes + 1 :].abs().sum()) == 0.0, "padding is never a stop"
    return law


def expected_accepted(rule: VerificationRule, shape: Shape, draft_table: Floats, target_table: Floats) -> float:
    """Return the expected number of draft tokens that a step keeps."""
    drawn, size = list(drafts_of(shape, draft_table)), target_table.shape[-1]
    draft = as_draft(shape, drawn, size)
    stop_probs = rule(draft, target_probs(shape, drawn, target_table)).stop_probs
    chances = torch.tensor([item.probability for item in drawn], dtype=torch.float64)
    return float(chances @ (stop_probs * draft.tree.depth).sum(1))


def total_variation(first: Floats, second: Floats) -> float:
    """Return half the sum of absolute differences."""
    return float(np.abs(first - second).sum() / 2)


def enumerated(
    shape: Shape, target_table: Floats, draft_table: Floats, padding: int = 1
) -> tuple[list[Drawn], Draft, torch.Tensor]:
    """Return all drafts of a shape, as one batch too, and the target's laws at their nodes."""
    drawn = list(drafts_of(shape, draft_table))
    return drawn, as_draft(shape, drawn, padding=padding), target_probs(shape, drawn, target_table, padding)


def assert_verdicts_agree(made: Verdict, wanted: Verdict, num_stops: int, close: float) -> None:
    """Fail unless stops are alike, and what follows those that can happen."""
    assert torch.allclose(made.stop_probs, wanted.stop_probs, rtol=0, atol=close)
    for stop in range(num_stops):
        rows = wanted.stop_probs[:, stop] > 0
        laws = [verdict.next_law(torch.full((len(rows),), stop)).dense(3)[rows] for verdict in (made, wanted)]
        assert torch.allclose(*laws, rtol=0, atol=close)
