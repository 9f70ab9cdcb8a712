"""Losses of heads in training: how far a head's predictions are from its oracle's."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_FACTOR = re.compile(r"(?:([0-9]*\.?[0-9]+)\*)?([a-z_][a-z0-9_]*)")
# Probabilities are kept this far from 0 and 1 before their logarithm is taken.
_SURE = 1e-6


@dataclass(frozen=True)
class PairedPredictions:
    """The predictions of head and oracle at M places.

    Attributes:
        learnt: ``[M, R]`` log-probabilities of the head, over the ids that it writes.
        taught: ``[M, R]`` those of the oracle's whole law, at the same ids.
        next_column: ``[M]`` the column of the id that the text has there, -1 if the head does not write it.
        likeliest_column: ``[M]`` that of the oracle's likeliest id, likewise.
        believed: ``[M]`` the head's confidence that a drawn token is accepted; None: it gives none.
    """

    learnt: Tensor
    taught: Tensor
    next_column: Tensor
    likeliest_column: Tensor
    believed: Tensor | None = None

    @property
    def stands(self) -> Tensor:
        """The probability ``[M]`` that a drawn token is accepted: sum of min(head, oracle)."""
        return torch.minimum(self.learnt, self.taught).exp().sum(-1)


def kl(said: PairedPredictions) -> Tensor:
    """Return one number ``[]``: KL(oracle || head) in nats per place, without mass on ids that the head cannot write.

    There the head's law is zero, and the divergence would be infinite whatever the head learns.
    """
    probs = said.taught.exp()
    return (probs * (said.taught - said.learnt)).sum(-1).mean()


def tv(said: PairedPredictions) -> Tensor:
    """Return one number ``[]``: the total variation from the oracle's whole law.

    It is 1 minus the acceptance probability of a drawn token.
    """
    probs = said.taught.exp()
    return ((said.learnt.exp() - probs).abs().sum(-1) + 1 - probs.sum(-1)).mean() / 2


def ce(said: PairedPredictions) -> Tensor:
    """Return one number ``[]``: the cross entropy of the text's ids, in nats per place.

    Ids that the head cannot write are left out.
    """
    written = said.next_column >= 0
    picked = said.learnt.gather(1, said.next_column.clamp(min=0).unsqueeze(1))[:, 0]
    return -(picked * written).sum() / written.sum().clamp(min=1)


def bce(said: PairedPredictions) -> Tensor:
    """Return one number ``[]``: the cross entropy of the head's confidence, in nats per place.

    It is taken against the acceptance probability of the head's draft, which gets no gradient: this loss moves the
    confidence, never the draft.

    Raises:
        ValueError: the head gives no confidence.
    """
    if said.believed is None:
        raise ValueError("loss 'bce' is of a head that tells confidences: train --kind dspark, or leave it out")
    chance, told = said.stands.detach(), said.believed.clamp(_SURE, 1 - _SURE)
    return -(chance * told.log() + (1 - chance) * (-told).log1p()).mean()


LOSSES: dict[str, Callable[[PairedPredictions], Tensor]] = {"kl": kl, "tv": tv, "ce": ce, "bce": bce}
# DSpark's (arXiv 2607.05147).
DSPARK_LOSS = "0.1*ce+0.9*tv+bce"


def read_mixture(text: str) -> dict[str, float]:
    """Return the weights of named losses in a sum such as ``kl`` or ``0.1*ce+0.9*tv+bce``.

    Raises:
        ValueError: it is no such sum, or names an unknown loss or one twice.
    """
    parts = [_FACTOR.fullmatch(part.strip()) for part in text.split("+")]
    found = {part[2]: float(part[1] or 1) for part in parts if part is not None}
    if None in parts or len(found) < len(parts) or not found.keys() <= LOSSES.keys():
        raise ValueError(f"loss is {text!r}; choose one of {', '.join(LOSSES)}, or a sum such as {DSPARK_LOSS}")
    return found


def mix(weights: dict[str, float], said: PairedPredictions) -> Tensor:
    """Return one number ``[]``: the sum of losses by name, each times its weight, see ``read_mixture``."""
    return torch.stack([weight * LOSSES[name](said) for name, weight in weights.items()]).sum()
