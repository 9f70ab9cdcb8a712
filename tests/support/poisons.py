"""Logits that no law can be made of."""

import math

import torch

from tests.support.counting import SIZE, Counting


class Poisoned(Counting):
    """Counts, but the logits after one id are ``poison``."""

    def __init__(self, after, poison):
        super().__init__()
        self.after, self.poison = after, torch.tensor(poison)

    def score(self, tokens, *arguments, **options):
        scores = super().score(tokens, *arguments, **options)
        if scores.logits is not None:
            scores.logits[tokens == self.after] = self.poison.double()
        return scores


POISONS = {
    "nan": [0.0] * 5 + [math.nan] + [0.0] * 10,
    "plus infinity": [0.0] * 5 + [math.inf] + [-math.inf] * 10,
    "only minus infinity": [-math.inf] * SIZE,
    "only nan": [math.nan] * SIZE,
}
