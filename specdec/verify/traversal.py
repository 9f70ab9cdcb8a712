"""Exact verification of trees from the leaves to the root: whole paths are asked before their beginnings."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specdec.contracts import Draft, NativeJudge, Reads, Rule, Verdict
from specdec.laws import Laws, as_laws
from specdec.verify.tree_verdicts import conditional_laws, match_ids


@dataclass(frozen=True)
class Traversal(Rule):
    """Ask the nodes of a tree from its leaves to its root whether the path to each stands; stop at the first.

    A node has a law p, the target's at first, and a weight w, the probability that the walk ends at it or below; the
    root's is 1. Its children take from both in drawing order: child x, drawn from q, gets the weight
    min(1, w p(x) / q(x)), and leaves the node the weight s / (s + 1 - w) and the law max(w p - q, 0) / s, where s is
    the sum of max(w p - q, 0). Then every node stands with the weight that its children have left it. Children are
    asked in drawing order, each after its own children, and then their parent. The next token is drawn from the law of
    the node that stands first. q is that of ``multi_draft``, also for children drawn without replacement.

    Guarantee: lossless for honest laws, also if siblings drawn with and without replacement, deterministic and equal
        ones stand under one node; scouts are never entered. On chains the numbers are those of ``block``. At
        temperature 0 ids are compared.
    Cost: that of ``multi_draft``: for sampled rows N dependent passes of O(B V), one per child, and O(B N V) memory;
        then 2 N of O(B). No host synchronisation. The native judge takes O(B V) for each node of positive weight that
        has children, and for each of its children.
    Source: Weng et al. 2025 (arXiv 2505.12398), traversal verification; on chains Sun et al. 2024 (arXiv 2403.10444).
    Deviations: weights are passed down once, before any node is asked: what a child leaves its parent depends only on
        the law that it was drawn from, not on what is below it. So the walk's outcome is one law over stops. A child
        whose parent of weight 1 has no residual has weight 1 (p = q up to rounding there).
    """

    name: ClassVar[str] = "traversal"
    lossless: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    native_judge: ClassVar[NativeJudge | None] = NativeJudge.STANDING
    reads: ClassVar[Reads] = Reads.DRAWN

    def __call__(self, draft: Draft, target_laws: Laws | Tensor) -> Verdict:
        """Return the law of the decision on drafts ``[B, N]``, from target laws ``[B, N+1]``."""
        target = as_laws(target_laws)
        if target.all_points:
            return Verdict(Laws.points(match_ids(draft, target)), draft.width + 1, target.gather)
        weights, left = _pass_down(draft, target)
        stop_probs = _ask_upwards(weights, draft.tree.above)
        return Verdict(Laws.from_probs(stop_probs), draft.width + 1, Laws.from_probs(left).gather)


def _pass_down(draft: Draft, target: Laws) -> tuple[Tensor, Tensor]:
    """Return the weights ``[B, N+1]`` and the laws ``[B, N+1, V]`` that children leave; scouts and padding have 0."""
    above, offered, left = draft.tree.above, draft.is_verified, target.dense()
    drawn_from = conditional_laws(draft, left.shape[-1])
    q = drawn_from.gather(2, draft.tokens.unsqueeze(2)).squeeze(2).double()
    q = q.clamp(min=torch.finfo(q.dtype).tiny)
    weights = torch.ones(left.shape[:2], dtype=torch.float64, device=left.device)
    rows = torch.arange(len(left), device=left.device)
    is_point = target.index < 0  # ids are compared with it
    for node in range(draft.width):
        parent, is_child = above[:, node], offered[:, node]
        law, weight, to_point = left[rows, parent], weights[rows, parent], is_point[rows, parent]
        rest, mass = _leave(law, drawn_from[:, node], weight)
        p = law.gather(1, draft.tokens[:, node : node + 1]).squeeze(1).double()
        ratio = (weight * p / q[:, node]).clamp(max=1)
        is_whole = weight == 1
        own = torch.where(is_whole & (mass == 0) & ~to_point, 1.0, ratio)
        weights[:, node + 1] = torch.where(is_child, own, 0.0)
        # Sums are in this order so that a weight of 1 stays exactly 1.
        kept = mass / (mass + (1 - weight)).clamp(min=torch.finfo(mass.dtype).tiny)
        weights[rows, parent] = torch.where(is_child & ~(is_whole & to_point), kept, weight)
        left[rows, parent] = torch.where(is_child.unsqueeze(1), rest, law)
    return weights, left


def _leave(law: Tensor, drawn_from: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return max(w p - q, 0) / s of probabilities ``[B, V]``, p itself if s is 0, and the sum s ``[B]`` float64."""
    rest = (law * weight.to(law.dtype).unsqueeze(1) - drawn_from.to(law.dtype)).clamp_(min=0)
    mass = rest.sum(-1, dtype=torch.float64)
    total = mass.clamp(min=torch.finfo(law.dtype).tiny).to(law.dtype).unsqueeze(1)
    return torch.where((mass > 0).unsqueeze(1), rest / total, law), mass


def _ask_upwards(weights: Tensor, above: Tensor) -> Tensor:
    """Return ``[B, N+1]``, the probability that each node is the first that stands, asked from leaves to root."""
    rows = torch.arange(len(weights), device=weights.device)
    # The probability that neither a node nor any node below it stands.
    none = 1 - weights
    for node in reversed(range(above.shape[1])):
        none[rows, above[:, node]] *= none[:, node + 1]
    # The probability that a node is asked, but for nodes below it that are still to come: children pass it on.
    asked = torch.ones_like(weights)
    for node in range(above.shape[1]):
        before = asked[rows, above[:, node]]
        asked[:, node + 1] = before
        asked[rows, above[:, node]] = before * none[:, node + 1]
    return weights * asked
