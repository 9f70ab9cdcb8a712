"""How sure a model is of a token: the token's probability, and the entropy of what it is drawn from."""

import numpy as np
import torch
from torch import Tensor

from specdec.laws import Laws
from specdec.native import compiled_laws

_UNWARPED = np.array([1.0, 0.0, 1.0, 0.0]).tobytes()  # temperature, top_k, top_p and min_p that change nothing


def confidence_of(laws: Laws, logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability of tokens: under their law, or the model's own if that is a point mass.

    Args:
        laws: shape ``S``.
        logits: ``S + [V]`` of the model, not warped.
        tokens: ``S``.

    Returns:
        ``S`` float64; NaN for a point mass if logits hold NaN or +inf.

    Guarantee: on the CPU, if laws are native, the bits are those that a ``ChainWatch`` is told.
    Cost: a gather, and O(V) for each logit row unless all laws are known to be no point masses.
    """
    drawn = laws.probs_of(tokens)
    if laws.has_no_points:
        return drawn
    return torch.where(laws.index < 0, _softmax(logits).gather(-1, tokens.unsqueeze(-1)).squeeze(-1), drawn)


def entropy_of(laws: Laws, logits: Tensor) -> Tensor:
    """Return the entropy in nats of laws, or of the model's own if they are point masses; see ``confidence_of``.

    Cost: O(V) a law.
    """
    if laws.has_no_points:
        return _entropies(laws.table)[laws.index]
    unwarped = _entropies(_softmax(logits))
    if laws.all_points:
        return unwarped
    return torch.where(laws.index < 0, unwarped, _entropies(laws.table)[laws.index.clamp(min=0)])


def _softmax(logits: Tensor) -> Tensor:
    """Return the float64 laws at temperature 1 of logits of any shape."""
    logits = logits.double()
    if logits.is_cpu and (native := compiled_laws()) is not None:
        return native.laws(logits.reshape(1, -1, logits.shape[-1]), _UNWARPED).view_as(logits)
    return logits.softmax(-1)


def _entropies(probs: Tensor) -> Tensor:
    """Return the entropies ``S`` of probabilities ``S + [V]``, float64."""
    if probs.is_cpu and (native := compiled_laws()) is not None:
        return native.entropies(probs.flatten(0, -2)).view(probs.shape[:-1])
    found: Tensor = torch.special.entr(probs.double()).sum(-1)
    return found
