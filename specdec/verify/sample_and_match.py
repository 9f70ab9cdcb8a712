"""Exact verification of any tree, whatever proposed it: sample from the target, follow the child that matches."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specdec.contracts import Draft, NativeJudge, Reads, Rule, Verdict
from specdec.laws import Laws, as_laws, excluding


@dataclass(frozen=True)
class SampleAndMatch(Rule):
    """Draw the target's own next token at each node and go on into the child that carries it.

    If no child does, the walk stops and the drawn token is the next one: its law there is the target's without the
    children's ids. Among equal siblings the first one is followed.

    Guarantee: lossless on any tree, also if the draft's declared laws are wrong: they are not read.
    Cost: O(B N^2) and, for sampled rows, one copy of the target's laws and a sum over it, O(B N V).
    Source: Yang et al. 2023 (arXiv 2304.04487) and Miao et al. 2024 (SpecInfer, arXiv 2305.09781), naive sampling.
    """

    name: ClassVar[str] = "sample_and_match"
    lossless: ClassVar[bool] = True
    trees: ClassVar[bool] = True
    native_judge: ClassVar[NativeJudge | None] = NativeJudge.MATCHED
    reads: ClassVar[Reads] = Reads.DRAFTED

    def __call__(self, draft: Draft, target_laws: Laws | Tensor) -> Verdict:
        """Return the law of the decision on drafts ``[B, N]``, from target laws ``[B, N+1]``."""
        target = as_laws(target_laws)
        tree, eligible = draft.tree, _eligible(draft)

        def next_law(stop: Tensor) -> Laws:
            return excluding(target.gather(stop), draft.tokens, eligible & (tree.above == stop.unsqueeze(1)))

        follow, leave = _follow_probs(draft, target, eligible)
        reach = torch.where(tree.ancestors[:, 1:, 1:], follow.unsqueeze(1), 1.0).prod(-1)
        if target.all_points:
            steps = torch.arange(1, draft.width + 1, device=reach.device)
            stop = torch.nn.functional.pad((reach > 0) * steps, (1, 0)).amax(-1)
            return Verdict(Laws.points(stop), draft.width + 1, next_law)
        reach = torch.nn.functional.pad(reach, (1, 0), value=1.0)
        # Padding is never reached, and its law may be undefined.
        stop_probs = torch.where(reach > 0, reach * leave, 0.0)
        return Verdict(Laws.from_probs(stop_probs), draft.width + 1, next_law)


@dataclass(frozen=True)
class CoupledMatch(SampleAndMatch):
    """Sample and match with draws keyed by absolute position alone: ids drawn this way are compared.

    Sampled output equals plain decoding's token for token, with any source; see ``specdec.sampling.Coupled``.
    """

    name: ClassVar[str] = "coupled"
    coupled: ClassVar[bool] = True


def _eligible(draft: Draft) -> Tensor:
    """Return ``[B, N]`` bool: the nodes that a walk may enter; only the first of equal siblings."""
    verified, above = draft.is_verified, draft.tree.above
    if draft.tree.parents is None:
        return verified
    order = torch.arange(draft.width, device=above.device)
    twins = above.unsqueeze(2) == above.unsqueeze(1)
    twins = twins & (draft.tokens.unsqueeze(2) == draft.tokens.unsqueeze(1))
    return verified & ~(twins & verified.unsqueeze(1) & (order < order.unsqueeze(1))).any(-1)


def _follow_probs(draft: Draft, target: Laws, eligible: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probability of entering each node from its parent ``[B, N]`` and of leaving at each node ``[B, N+1]``.

    What is left at a node is summed over the ids that no child carries, never taken as 1 minus the children: if
    nothing is left it is exactly 0.
    """
    above = draft.tree.above
    mass = target.gather(above).probs_of(draft.tokens) * eligible
    if target.all_points:
        return mass, torch.ones_like(target.index, dtype=torch.float64)
    rest = target.dense()
    rows = torch.arange(len(above), device=mass.device).unsqueeze(1).expand_as(above)
    # Eligible siblings differ, so that each takes away exactly its own probability.
    rest.index_put_((rows, above, draft.tokens), -mass.to(rest.dtype), accumulate=True)
    left = rest.sum(-1, dtype=torch.float64)
    entered = torch.zeros_like(left).scatter_add_(1, above, mass)
    total = (left + entered).clamp(min=torch.finfo(left.dtype).tiny)
    return mass / total.gather(1, above), left / total
