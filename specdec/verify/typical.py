"""Typical acceptance, which is lossy: what the target finds likely enough stands."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specdec.contracts import Draft, Rule, Verdict
from specdec.laws import Laws, as_laws
from specdec.theory import check_finite


@dataclass(frozen=True)
class Typical(Rule):
    """Accept draft token x if p(x) > min(epsilon, delta exp(-H(p))), and follow the longest path of such tokens.

    p is the target's law at the node's parent, after warping, and H(p) its entropy in nats. Among paths of one length
    the first one is followed. The next token is drawn from p at the stop, whatever was rejected there.

    Args:
        epsilon: the threshold if p is certain, in [0, 1).
        delta: how the threshold falls with the entropy, 0 or more.

    Raises:
        ValueError: an argument is out of its range.

    Guarantee: none for sampled rows: the output law is *not* the target's. A draft of likely tokens stands more often
        than the target would write them. Results say "lossy: typical(...)". At temperature 0 ids are compared, and the
        output is plain decoding's.
    Cost: O(B N V) for the entropies of sampled rows, O(B N^2) for paths. There is no native judge.
    Source: Cai et al. 2024 (Medusa, arXiv 2401.10774), typical acceptance.
    Deviations: Medusa always accepts the first drafted token, because the target itself chose it greedily; here every
        draft token has to pass, and the token that the target adds after the stop is drawn, not its likeliest.
    """

    epsilon: float = 0.09
    delta: float = 0.3

    name: ClassVar[str] = "typical"
    lossless: ClassVar[bool] = False
    trees: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_finite("epsilon", self.epsilon)
        if self.epsilon >= 1:
            raise ValueError(f"epsilon={self.epsilon!r} must lie in [0, 1): from 1 on no token stands")
        check_finite("delta", self.delta)

    def __call__(self, draft: Draft, target_laws: Laws | Tensor) -> Verdict:
        """Return the law of the decision on drafts ``[B, N]``, from target laws ``[B, N+1]``."""
        target, tree = as_laws(target_laws), draft.tree
        parents = target.gather(tree.above)
        likely = parents.probs_of(draft.tokens) > self._thresholds(target).gather(1, tree.above)
        stands = torch.where(tree.ancestors[:, 1:, 1:], (likely & draft.is_verified).unsqueeze(1), True).all(-1)
        depths = torch.constant_pad_nd(stands * tree.depth[:, 1:], (1, 0))
        return Verdict(Laws.points(depths.argmax(1)), draft.width + 1, target.gather)

    def _thresholds(self, target: Laws) -> Tensor:
        """Return ``[B, N+1]`` float64, what a token's probability must exceed at each node."""
        at_points = min(self.epsilon, self.delta)  # whose entropy is 0
        if target.all_points:
            return torch.full(target.shape, at_points, dtype=torch.float64, device=target.index.device)
        entropies = torch.special.entr(target.table).sum(-1, dtype=torch.float64)
        found = (self.delta * (-entropies).exp()).clamp(max=self.epsilon)
        return torch.where(target.index < 0, at_points, found[target.index.clamp(min=0)])
