"""What is left of a law: residuals, and laws without some ids."""

import torch
from torch import Tensor

from specdec.laws.laws import Laws


def residual_mass(target: Laws, draft: Laws, weight: Tensor | None = None) -> Tensor:
    """Return sum over x of max(w p(x) - q(x), 0) for each pair of laws ``[...]``, float64.

    Args:
        target: laws p of shape ``[...]``.
        draft: laws q of that shape.
        weight: ``[...]`` float64, w in [0, 1]; None: 1.

    Cost: O(|S| V) if both are tables, O(|S|) if one side is a point mass.
    """
    if draft.all_points:  # q on x: w (1 - p(x))
        left = 1.0 - target.probs_of(draft.point)
        return left if weight is None else weight * left
    if target.all_points:  # p on y: w - q(y)
        return ((1.0 if weight is None else weight) - draft.probs_of(target.point)).clamp(min=0)
    size = target.table.shape[1]
    p, q = _weigh(target.dense_view(size), weight), draft.dense_view(size)
    return (p - q).clamp_(min=0).sum(-1, dtype=torch.float64)


def has_residual(target: Laws, draft: Laws) -> Tensor:
    """Return whether ``residual_mass`` is above 0 for each pair of laws ``[...]``, bool, at a fraction of its cost."""
    if target.all_points or draft.all_points:
        return residual_mass(target, draft) > 0
    size = target.table.shape[1]
    return (target.dense_view(size) > draft.dense_view(size)).any(-1)


def residual(target: Laws, draft: Laws, weight: Tensor | None = None) -> Laws:
    """Return the normalised residual max(w p - q, 0) / sum for each pair of laws of equal shape ``[B]``.

    If the residual has no mass, the target law itself is returned: such a stop has probability 0 (see
    ``VerificationRule``), so that entry is never used, and no NaN exists.

    Args:
        target: laws p of shape ``[B]``.
        draft: laws q of shape ``[B]``.
        weight: ``[B]`` float64, w in [0, 1]; None: 1. If q is a point mass, the weight changes nothing.

    Guarantee: an id of target probability 0 keeps probability 0; a rejected point-mass candidate gets 0.
    Cost: O(B V) time and memory; nothing V-wide if the target laws are point masses.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), section 2.3; Chen et al. 2023 (arXiv 2302.01318), eq. 2; with
        weights Sun et al. 2024 (arXiv 2403.10444).
    """
    if target.all_points:
        return target
    if draft.all_points:
        p = target.dense_view()
        return Laws.from_probs(_normalise(p.scatter(-1, draft.point.unsqueeze(-1), 0.0), p)[0])
    size = target.table.shape[1]
    return Laws.from_probs(residual_probs(target.dense_view(size), draft.dense_view(size), weight)[0])


def _weigh(p: Tensor, weight: Tensor | None) -> Tensor:
    """Return probabilities ``S + [V]`` times weights ``S``, in their own type; None: 1."""
    return p if weight is None else p * weight.to(p.dtype).unsqueeze(-1)


def _normalise(mass: Tensor, otherwise: Tensor) -> tuple[Tensor, Tensor]:
    """Return mass / sum ``S + [V]``, or ``otherwise`` if the sum is 0, and ``S`` bool, whether it is not."""
    total = mass.sum(-1, keepdim=True)
    some = total > 0
    if some.device.type == "cpu" and bool(some.all()):
        return mass / total, some.squeeze(-1)
    return torch.where(some, mass / total.clamp(min=torch.finfo(mass.dtype).tiny), otherwise), some.squeeze(-1)


def residual_probs(p: Tensor, q: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return max(w p - q, 0) / sum for probabilities ``S + [V]``, or p itself if the sum is 0, and whether it is not.

    Args:
        p, q: ``S + [V]``.
        weight: ``S`` float64, w in [0, 1]; None: 1.

    Returns:
        Probabilities ``S + [V]`` in the type of ``p``, and ``S`` bool.

    Cost: O(|S| V).
    """
    return _normalise((_weigh(p, weight) - q.to(p.dtype)).clamp(min=0), p)


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
