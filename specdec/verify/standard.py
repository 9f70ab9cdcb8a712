"""Token-by-token acceptance of a chain: speculative sampling."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specdec.contracts import Draft, NativeJudge, Rule, Verdict
from specdec.laws import Laws, as_laws, has_residual
from specdec.verify.chain_verdicts import compare_ids, next_law_of, refuse_tree


@dataclass(frozen=True)
class Standard(Rule):
    """Accept draft token x with probability min(1, p(x) / q(x)); after a rejection draw from max(p - q, 0) / sum.

    p is the target's law at the node's parent and q the law that x was drawn from; a token chosen deterministically has
    a point mass as q, so it is accepted with probability p(x) and its residual is p without x.

    Guarantee: lossless for honest laws, sampled or deterministic; at temperature 0 ids are compared.
    Cost: O(B N V) elementwise for sampled rows with real draft laws, O(B N) for point masses, and O(B V) for the law of
        the next token. The native judge takes O(B V) for each node up to the stop.
    Source: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318).
    Deviations: the walk's outcome is returned as one law over stops instead of one coin per token; a node whose
        residual has no mass is accepted with certainty (the ratio is 1 up to rounding there).
    """

    name: ClassVar[str] = "standard"
    lossless: ClassVar[bool] = True
    native_judge: ClassVar[NativeJudge | None] = NativeJudge.OFFERED

    def __call__(self, draft: Draft, target_laws: Laws | Tensor) -> Verdict:
        """Return the law of the decision on drafts ``[B, N]``, from target laws ``[B, N+1]``."""
        refuse_tree(self.name, draft)
        target, width = as_laws(target_laws), draft.width
        if target.all_points and draft.laws is None:
            return compare_ids(draft, target)
        accept = torch.where(draft.is_verified, _acceptance(draft, target[:, :width]), 0.0)
        reached = torch.constant_pad_nd(accept.cumprod(1), (1, 0), 1.0)
        stop_probs = reached * (1 - torch.constant_pad_nd(accept, (0, 1)))
        return Verdict(Laws.from_probs(stop_probs), width + 1, next_law_of(draft, target))


def _acceptance(draft: Draft, target: Laws) -> Tensor:
    """Return ``[B, N]`` float64, the probability that each token stands once it is reached."""
    p, drawn_from = target.probs_of(draft.tokens), draft.laws
    if drawn_from is None:  # q is 1, and nothing is left beside a token of probability 1
        return p.clamp(max=1)
    q = drawn_from.probs_of(draft.tokens)
    ratio = (p / q.clamp(min=torch.finfo(q.dtype).tiny)).clamp(max=1)
    if target.all_points:
        return ratio
    return torch.where(has_residual(target, drawn_from) | p.isnan() | (target.index < 0), ratio, 1.0)
