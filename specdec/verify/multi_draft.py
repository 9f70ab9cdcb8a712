"""Exact verification of trees by the laws that their nodes were drawn from: recursive rejection over the children."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specdec.contracts import Draft, NativeJudge, Reads, Rule, Verdict
from specdec.laws import Laws, as_laws, residual_probs
from specdec.verify.tree_verdicts import conditional_laws, match_ids


@dataclass(frozen=True)
class MultiDraft(Rule):
    """Offer the children of a node in drawing order, each to the law that the earlier ones left of the target's.

    p is the target's law at the node and q the law that child x was drawn from. The walk goes on into x with
    probability min(1, p(x) / q(x)); if it does not, p becomes max(p - q, 0) / sum and the next child is offered. After
    the last child the walk stops, and the next token is drawn from p as it then is. For a child drawn without
    replacement q is its declared law without its earlier siblings by the same source, renormalised. A deterministic
    child has a point mass as q: it is entered with probability p(x) and leaves p without x.

    Guarantee: lossless for honest laws, also if siblings drawn with and without replacement, deterministic and equal
        ones stand under one node; scouts are never entered. On chains the numbers are those of ``standard``. At
        temperature 0 ids are compared.
    Cost: for sampled rows N dependent passes of O(B V), one per child, and O(B N V) memory for the laws of the children
        and what they leave of the target's; O(B N^2) more for draws without replacement; O(B N log N) if the
        target's laws are point masses. No host synchronisation. The native judge takes O(B V) for each node that can
        be reached before the stop, and for each of its children.
    Source: Miao et al. 2024 (SpecInfer, arXiv 2305.09781), multi-step speculative sampling, for draws with replacement;
        Jeon et al. 2024 (arXiv 2402.14160) and Chen et al. 2024 (Sequoia, arXiv 2402.12374) for draws without.
    Deviations: SpecInfer offers the children in random order. Here they come as they were drawn, because a child
        drawn without replacement has a known law given the earlier ones only.
    """

    name: ClassVar[str] = "multi_draft"
    lossless: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    native_judge: ClassVar[NativeJudge | None] = NativeJudge.OFFERED
    reads: ClassVar[Reads] = Reads.SIBLINGS

    def __call__(self, draft: Draft, target_laws: Laws | Tensor) -> Verdict:
        """Return the law of the decision on drafts ``[B, N]``, from target laws ``[B, N+1]``."""
        target = as_laws(target_laws)
        if target.all_points:
            return Verdict(Laws.points(match_ids(draft, target)), draft.width + 1, target.gather)
        stop_probs, left = _offer_all(draft, target)
        return Verdict(Laws.from_probs(stop_probs), draft.width + 1, Laws.from_probs(left).gather)


def _offer_all(draft: Draft, target: Laws) -> tuple[Tensor, Tensor]:
    """Return the probability of stopping at each node ``[B, N+1]``, and the laws that children leave at each.

    Before a child is offered, ``waiting`` is the probability that the walk stands at each node and that the children
    already offered there were rejected; after the last child that is the probability of stopping.
    """
    above, offered = draft.tree.above, draft.is_verified
    left = target.dense()
    drawn_from = conditional_laws(draft, left.shape[-1])
    q = drawn_from.gather(2, draft.tokens.unsqueeze(2)).squeeze(2).double()
    q = q.clamp(min=torch.finfo(q.dtype).tiny)
    waiting = torch.zeros(left.shape[:2], dtype=torch.float64, device=left.device)
    waiting[:, 0] = 1.0
    rows = torch.arange(len(left), device=left.device)
    is_point = target.index < 0  # ids are compared with it
    for node in range(draft.width):
        parent = above[:, node]
        law = left[rows, parent]
        rest, has_rest = residual_probs(law, drawn_from[:, node])
        p = law.gather(1, draft.tokens[:, node : node + 1]).squeeze(1).double()
        ratio = (p / q[:, node]).clamp(max=1)
        accept = torch.where(has_rest | is_point[rows, parent], ratio, 1.0) * offered[:, node]
        here = waiting[rows, parent]
        waiting[:, node + 1] = here * accept
        waiting[rows, parent] = here * (1 - accept)
        left[rows, parent] = torch.where(offered[:, node].unsqueeze(1), rest, law)
    return waiting, left
