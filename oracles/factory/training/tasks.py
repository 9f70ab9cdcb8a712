"""What a language model may be trained for: the next token of a text, or a teacher's law of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from oracles.factory.training.precision import autocast
from oracles.transformer.eager import Transformer


class Task(Protocol):
    """What is trained, and what its loss is."""

    @property
    def model(self) -> nn.Module:
        """The model whose parameters are trained, the hidden matrices with Muon."""

    @property
    def identity(self) -> str:
        """What a resumed run must share besides recipe and batches."""

    def loss(self, rows: Tensor) -> Tensor:
        """Return the loss in nats per token of rows ``[B, T + 1]``."""


class NextToken:
    """Predict the next token.

    Args:
        model: on the device.
        precision: of the matrix products.
        first: the first position of a row whose *token* is predicted; earlier tokens are only read.
    """

    def __init__(self, model: Transformer, precision: str, first: int = 1) -> None:
        self.model, self.precision, self.first = model, precision, first
        self.identity = "next token" if first == 1 else f"next token from {first}"

    def loss(self, rows: Tensor) -> Tensor:
        """Return one number ``[]``: the cross entropy in nats per predicted token of rows ``[B, T + 1]``."""
        with autocast(rows.device.type, self.precision):
            logits = self.model(rows[:, :-1])[:, self.first - 1 :]
        return functional.cross_entropy(logits.float().flatten(0, 1), rows[:, self.first :].flatten())


def forward_kl(draft: Tensor, target: Tensor) -> Tensor:
    """Return KL(target || draft) in nats per token, from log-probabilities ``[tokens, V]``."""
    return functional.kl_div(draft, target, reduction="batchmean", log_target=True)


def mean_variation(draft: Tensor, target: Tensor) -> Tensor:
    """Return half of the summed differences, from log-probabilities ``[tokens, V]``: 1 - the acceptance of a draw."""
    return (draft.exp() - target.exp()).abs().sum(-1).mean() / 2


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "forward-kl": forward_kl,
    "reverse-kl": lambda draft, target: forward_kl(target, draft),
    "total-variation": mean_variation,
}


@dataclass(frozen=True)
class Pupil:
    """A model that learns from a teacher, and the measure of its distance from it (a key of ``DIVERGENCES``)."""

    model: Transformer
    divergence: str = "forward-kl"

    def __post_init__(self) -> None:
        if self.divergence not in DIVERGENCES:
            raise ValueError(f"divergence is {self.divergence!r}; choose one of {', '.join(DIVERGENCES)}")


class Distillation:
    """Several pupils learn from the same passes of one teacher; they share nothing else.

    Args:
        pupils: by name, on the device, of the teacher's vocabulary.
        teacher: frozen.
        precision: of the matrix products.

    *Source*: Zhou et al. 2023 (DistillSpec, arXiv 2310.08461), which compares these divergences and finds that a draft
        should learn on text of the target's own.
    """

    def __init__(self, pupils: Mapping[str, Pupil], teacher: Transformer, precision: str) -> None:
        self.pupils, self.teacher, self.precision = dict(pupils), teacher.requires_grad_(False), precision
        self.model = nn.ModuleDict({name: pupil.model for name, pupil in pupils.items()})
        self.identity = ", ".join(f"{name} by {pupil.divergence}" for name, pupil in pupils.items())

    def loss(self, rows: Tensor) -> Tensor:
        """Return one number ``[]``: the sum over the pupils of their mean divergence from the teacher, per token.

        Of rows ``[B, T + 1]`` the last ids are not read.
        """
        inputs = rows[:, :-1]
        with autocast(rows.device.type, self.precision):
            with torch.no_grad():
                taught = log_probs(self.teacher(inputs))
            learnt = [(log_probs(pupil.model(inputs)), pupil.divergence) for pupil in self.pupils.values()]
        return torch.stack([DIVERGENCES[divergence](draft, taught) for draft, divergence in learnt]).sum()


def log_probs(logits: Tensor) -> Tensor:
    """Return ``[tokens, V]`` float32 log-probabilities."""
    return logits.float().flatten(0, -2).log_softmax(-1)
