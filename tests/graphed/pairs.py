"""A target and a model to draft with on an emulated device."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from oracles import Transformer
from oracles.graphed import GraphedTransformer
from tests.graphed.emulated import CUDA
from tests.support.models.tiny_models import small_model

PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [4, 5, 6, 4, 5, 6, 4], [7, 8, 9], [5, 5, 5, 5, 5]]
TOKENS = 12


@dataclass(frozen=True)
class Pair:
    """A target and a model to draft with, on one device."""

    target: GraphedTransformer
    model: GraphedTransformer


def moved(model: Transformer) -> Transformer:
    """Return a model like another one, on the device."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(model.model.norm.weight.dtype)  # there, a parameter cannot be given another type
    try:
        with CUDA:
            there = Transformer(model.config, seed=None)
    finally:
        torch.set_default_dtype(default)
    with torch.no_grad():
        for mine, other in zip(there.parameters(), model.parameters(), strict=True):
            mine.copy_(other)
    return there


def _unmoved(model: Transformer) -> Transformer:
    return model


@cache
def _packed(place: Callable[[Transformer], Transformer], seed: int) -> Transformer:
    return place(small_model(seed=seed)).pack()


def pair(place: Callable[[Transformer], Transformer] = _unmoved) -> Pair:
    """Return oracles of their own around models that tests share, as those are there; ``moved`` ones for any device."""
    return Pair(*(GraphedTransformer(_packed(place, seed)) for seed in (0, 1)))
