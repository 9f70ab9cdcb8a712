"""From laws to a drawn verdict: the engine and staged drafts judge in this one way."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import Draft, Randomness, Verdict, VerificationRule
from specdec.laws import Laws


@dataclass(frozen=True)
class Judged:
    """A verdict and the draws from it, on the device of the draft.

    Attributes:
        stops: ``[B]`` laws over the nodes, as the rule gave them.
        drawn_stop: ``[B]`` drawn from them; a point may lie anywhere, so it is no node before that was checked.
        stop: ``[B]`` the same, within the nodes.
        next_law: ``[B]`` of the token after the stop.
        next_ids: ``[B]`` drawn from it.
    """

    stops: Laws
    drawn_stop: Tensor
    stop: Tensor
    next_law: Laws
    next_ids: Tensor


def judge(rule: VerificationRule, draft: Draft, laws: Laws, randomness: Randomness) -> Judged:
    """Judge a draft, and draw where the walk stops and what follows there.

    Args:
        rule: gives the law of the decision.
        draft: trees of ``[B, N]`` nodes.
        laws: ``[B, N+1]`` of the model that judges. In coupled mode the verdict compares ids that are drawn from them.
        randomness: of the rows; draws for "target", "stop" and "next".

    Raises:
        ValueError: the rule returns no verdict on these nodes.

    Cost: that of the rule, and two draws (in coupled mode N + 1 more). No host synchronisation.
    """
    tree = draft.tree
    if randomness.coupled:
        laws = Laws.points(randomness.choose(laws, np.arange(tree.size), tree.depth, "target"))
    if rule.lossless and not draft.width:
        return _undrafted(draft, laws[:, 0], randomness)
    verdict = rule(draft, laws)
    _check_form(rule, verdict, draft)
    drawn = randomness.choose(verdict.stops, 0, 0, "stop")
    stop = drawn.clamp(0, draft.width)
    next_law = verdict.next_law(stop)
    return Judged(verdict.stops, drawn, stop, next_law, randomness.choose(next_law, 0, tree.depth_of(stop), "next"))


def _undrafted(draft: Draft, law: Laws, randomness: Randomness) -> Judged:
    """Judge drafts without a node, as every lossless rule does: stop at the root, draw from ``law`` ``[B]``."""
    root = torch.zeros_like(draft.num_nodes)
    return Judged(Laws.points(root), root, root, law, randomness.choose(law, 0, root, "next"))


def _check_form(rule: VerificationRule, verdict: Verdict, draft: Draft) -> None:
    """Raise ValueError if a verdict cannot be drawn from; reads no tensor."""
    if not isinstance(verdict, Verdict):
        raise ValueError(f"rule {rule.name!r} returned {type(verdict).__name__}; return a Verdict")
    stops, wanted = verdict.stops, (len(draft.num_nodes), draft.width + 1)
    shape = (*stops.shape, wanted[1] if stops.all_points else stops.table.shape[1])
    if shape != wanted:
        raise ValueError(
            f"rule {rule.name!r}: stops have the shape {shape}, not that of the nodes, root first: {wanted}"
        )
