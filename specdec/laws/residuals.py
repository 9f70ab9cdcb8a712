"""What is left of a law: residuals, and laws without some ids."""

import torch
from torch import Tensor

from specdec.laws.laws import Laws


def residual_mass(target: Laws, draft: Laws) -> Tensor:
    """Return sum over x of max(p(x) - q(x), 0) for each pair of laws ``[...]``, float64.

    Cost: O(|S| V) if both are tables, O(|S|) if one side is a point mass.
    """
    if target.all_points or draft.all_points:
        # With a point mass q on x: sum max(p - q, 0) = 1 - p(x); with a point mass p on y: 1 - q(y).
        probs = target.probs_of(draft.point) if draft.all_points else draft.probs_of(target.point)
        return 1.0 - probs
    size = target.table.shape[1]
    return (target.dense_view(size) - draft.dense_view(size)).clamp(min=0).double().sum(-1)


def has_residual(target: Laws, draft: Laws) -> Tensor:
    """Return whether ``residual_mass`` is above 0 for each pair of laws ``[...]``, bool, at a fraction of its cost."""
    if target.all_points or draft.all_points:
        return residual_mass(target, draft) > 0
    size = target.table.shape[1]
    return (target.dense_view(size) > draft.dense_view(size)).any(-1)


def residual(target: Laws, draft: Laws) -> Laws:
    """Return the normalised residual max(p - q, 0) / sum for each pair of laws of equal shape ``[B]``.

    If the residual has no mass, the target law itself is returned: such a stop has probability 0 (see
    ``VerificationRule``), so that entry is never used, and no NaN exists.

    Guarantee: an id of target probability 0 keeps probability 0; a rejected point-mass candidate gets 0.
    Cost: O(B V) time and memory; nothing V-wide if the target laws are point masses.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), section 2.3; Chen et al. 2023 (arXiv 2302.01318), eq. 2.
    """
    if target.all_points:
        return target
    if draft.all_points:
        p = target.dense_view()
        return Laws.from_probs(_normalise(p.scatter(-1, draft.point.unsqueeze(-1), 0.0), p)[0])
    size = target.table.shape[1]
    return Laws.from_probs(residual_probs(target.dense_view(size), draft.dense_view(size))[0])


def _normalise(mass: Tensor, otherwise: Tensor) -> tuple[Tensor, Tensor]:
    """Return mass / sum ``S + [V]``, or ``otherwise`` if the sum is 0, and ``S`` bool, whether it is not."""
    total = mass.sum(-1, keepdim=True)
    some = total > 0
    if some.device.type == "cpu" and bool(some.all()):
        return mass / total, some.squeeze(-1)
    return torch.where(some, mass / total.clamp(min=torch.finfo(mass.dtype).tiny), otherwise), some.squeeze(-1)


def residual_probs(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Return max(p - q, 0) / sum for probabilities ``S + [V]``, or p itself if the sum is 0, and whether it is not.

    Returns:
        Probabilities ``S + [V]`` in the type of ``p``, and ``S`` bool.

    Cost: O(|S| V).
    """
    return _normalise((p - q.to(p.dtype)).clamp(min=0), p)


def excluding(target: Laws, tokens: Tensor, mask: Tensor) -> Laws:
    """Return each law with the ids ``tokens[mask]`` removed, renormalised.

    Args:
        target: laws of shape ``S``.
        tokens: ``S + [N]`` ids.
        mask: ``S + [N]`` bool, which of them are removed.

    Returns:
        Laws of shape ``S``; a law that loses all its mass is returned as it was (its stop has probability 0).

    Cost: O(|S| (N + V)), nothing V-wide if the laws are point masses.
    """
    if target.all_points:
        return target
    p = target.dense_view()
    removed = torch.zeros_like(p).scatter_reduce_(-1, tokens, mask.to(p.dtype), "amax")
    return Laws.from_probs(_normalise(p * (1 - removed), p)[0])
