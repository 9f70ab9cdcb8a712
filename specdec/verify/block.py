"""Acceptance of a chain as a whole: block verification."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specdec.contracts import Draft, NativeJudge, Reads, Rule, Verdict
from specdec.laws import Laws, as_laws, residual_mass
from specdec.verify.chain_verdicts import compare_ids, next_law_of, refuse_tree


@dataclass(frozen=True)
class BlockVerification(Rule):
    """Accept the longest beginning of a chain that stands as a block, and draw on from what that leaves of the target.

    Of the chain x_1 .. x_n, p_i is the target's law after x_1 .. x_i and q_i the law that x_(i+1) was drawn from. The
    weight of the first i tokens is w_i = min(1, w_(i-1) p_(i-1)(x_i) / q_(i-1)(x_i)), with w_0 = 1; what they leave is
    s_i, the sum over y of max(w_i p_i(y) - q_i(y), 0). They stand with probability h_i = s_i / (s_i + 1 - w_i), the
    whole chain with h_n = w_n. Every beginning is asked, whatever became of shorter ones, and the walk stops at the
    longest that stands: with probability h_i (1 - h_(i+1)) ... (1 - h_n), h_0 = 1. There the next token is drawn from
    max(w_i p_i - q_i, 0) / s_i, and after the whole chain from p_n.

    Guarantee: lossless for honest laws. In expectation no lossless rule that knows the same laws accepts more tokens of
        a chain, and ``standard`` never more. For tokens chosen deterministically the numbers are those of ``standard``.
        At temperature 0 ids are compared.
    Cost: O(B N V) elementwise for sampled rows with real draft laws, O(B N) for point masses, and O(B V) for the law of
        the next token. The native judge takes O(B V) for each node of positive weight: it cannot stop early, as that
        of ``standard`` does. For tokens that were all chosen it is the judge of ``standard``.
    Source: Sun et al. 2024 (arXiv 2403.10444), block verification.
    Deviations: the outcome is returned as one law over stops instead of a coin for each beginning. h_i is 0 / 0 only if
        p = q and w_i = 1, and then counts as 0, because the next token stands for certain; if nothing is left at the
        root, the probability that rounding gives it goes to the whole chain.
    """

    name: ClassVar[str] = "block"
    lossless: ClassVar[bool] = True
    native_judge: ClassVar[NativeJudge | None] = NativeJudge.STANDING
    reads: ClassVar[Reads] = Reads.DRAWN

    def __call__(self, draft: Draft, target_laws: Laws | Tensor) -> Verdict:
        """Return the law of the decision on drafts ``[B, N]``, from target laws ``[B, N+1]``."""
        refuse_tree(self.name, draft)
        target, width = as_laws(target_laws), draft.width
        if target.all_points:
            return compare_ids(draft, target)
        weights = _weights(draft, target[:, :width])
        stands = _stands(draft, target[:, :width], weights)
        stop_probs = _stop_at_the_longest(stands, draft.num_nodes)
        return Verdict(Laws.from_probs(stop_probs), width + 1, next_law_of(draft, target, weights))


def _weights(draft: Draft, target: Laws) -> Tensor:
    """Return ``[B, N+1]`` float64, w_0 to w_N; arbitrary for padding."""
    p, q = target.probs_of(draft.tokens), draft.node_laws.probs_of(draft.tokens)
    ratios = p / q.clamp(min=torch.finfo(q.dtype).tiny)
    weights = [ratios.new_ones(len(ratios))]
    for node in range(draft.width):
        weights.append((weights[-1] * ratios[:, node]).clamp(max=1))
    return torch.stack(weights, 1)


def _stands(draft: Draft, target: Laws, weights: Tensor) -> Tensor:
    """Return ``[B, N+1]`` float64, h_0 to h_n, and 0 for padding."""
    before = weights[:, :-1]
    left = residual_mass(target, draft.node_laws, before)
    # If the target's law is a point, ids are compared, even if the draft's law rounds to that one id in its type.
    left = torch.where((target.index < 0) & (before == 1), 1.0, left)
    # Sums are in this order so that a weight of 1 gives exactly 1.
    inner = left / (left + (1 - before)).clamp(min=torch.finfo(left.dtype).tiny)
    inner = torch.constant_pad_nd(inner, (0, 1))
    nodes, last = torch.arange(draft.width + 1, device=left.device), draft.num_nodes.unsqueeze(1)
    return torch.where(nodes < last, inner, torch.where(nodes == last, weights, 0.0))


def _stop_at_the_longest(stands: Tensor, last: Tensor) -> Tensor:
    """Return ``[B, N+1]``, the probability that each beginning is the longest that stands.

    Args:
        stands: ``[B, N+1]``, of each independently.
        last: ``[B]``, that of the whole chain, which is taken if none stands.
    """
    # [B, N+1]: neither this one nor a longer one stands.
    none = (1 - stands).flip(1).cumprod(1).flip(1)
    longer = torch.constant_pad_nd(none[:, 1:], (0, 1), 1.0)
    return (stands * longer).scatter_add(1, last.unsqueeze(1), none[:, :1])
