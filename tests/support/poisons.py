"""Logits that no law can be made of."""

import math

import torch

from tests.support.counting import SIZE, Counting


class Poisoned(Counting):
    """Counts, but the logits after one id are ``poison``."""

    def __init__(self, poison, after=13):
        super().__init__()
        self.poison, self.after = torch.tensor(poison, dtype=torch.float64), after

    def score(self, tokens, parents, num_nodes, cache, rows, want="all", hidden=(), first=0):
        scores = super().score(tokens, parents, num_nodes, cache, rows, want, hidden, first)
        if scores.logits is not None:
            read = tokens[:, first:] if want == "all" else tokens.gather(1, num_nodes.unsqueeze(1) - 1)
            scores.logits[read == self.after] = self.poison
        return scores


POISONS = {
    "nan": [0.0] * 5 + [math.nan] + [0.0] * 10,
    "plus infinity": [0.0] * 5 + [math.inf] + [-math.inf] * 10,
    "only minus infinity": [-math.inf] * SIZE,
    "only nan": [math.nan] * SIZE,
}
