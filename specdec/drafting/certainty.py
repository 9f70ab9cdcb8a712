"""How sure a model is of a token: the token's probability, and the entropy of what it is drawn from."""

import torch
from torch import Tensor

from specdec.contracts import DraftKernels
from specdec.laws import Laws


def confidence_of(laws: Laws, logits: Tensor, tokens: Tensor, kernels: DraftKernels) -> Tensor:
    """Return the probability of tokens: under their law, or the model's own if that is a point mass.

    Args:
        laws: shape ``S``.
        logits: ``S + [V]`` of the model, not warped.
        tokens: ``S``.
        kernels: compute the softmax of a model's own law.

    Returns:
        ``S`` float64; NaN for a point mass if logits hold NaN or +inf.

    Guarantee: on the CPU, with native kernels, the bits are those that a ``ChainWatch`` is told.
    Cost: a gather, and O(V) for each logit row unless all laws are known to be no point masses.
    """
    drawn = laws.probs_of(tokens)
    if laws.has_no_points:
        return drawn
    return torch.where(laws.index < 0, kernels.softmax(logits).gather(-1, tokens.unsqueeze(-1)).squeeze(-1), drawn)


def entropy_of(laws: Laws, logits: Tensor, kernels: DraftKernels) -> Tensor:
    """Return the entropy in nats of laws, or of the model's own if they are point masses; see ``confidence_of``.

    Cost: O(V) a law.
    """
    if laws.has_no_points:
        return kernels.entropies(laws.table)[laws.index]
    unwarped = kernels.entropies(kernels.softmax(logits))
    if laws.all_points:
        return unwarped
    return torch.where(laws.index < 0, unwarped, kernels.entropies(laws.table)[laws.index.clamp(min=0)])
