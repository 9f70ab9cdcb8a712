"""From logits to drawn tokens: what a request asks of its law, the laws that follow, and keyed draws."""

from specdec.sampling.parameters import SamplingParams
from specdec.sampling.randomness import Coupled, Keyed, RandomnessFactory, Seed, part_number, seed_keys
from specdec.sampling.warping import BatchWarping, ParameterTable, path_mask

__all__ = [
    "BatchWarping",
    "Coupled",
    "Keyed",
    "ParameterTable",
    "RandomnessFactory",
    "SamplingParams",
    "Seed",
    "part_number",
    "path_mask",
    "seed_keys",
]
