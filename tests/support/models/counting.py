"""Oracles whose greedy text is known beforehand (they count), sources that guess it, and a tokenizer of letters."""

import math
from collections.abc import Sequence

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from drafts.stateless import StatelessSource, stateless
from oracles.tabular import TabularLM

SIZE = 16
LETTERS = tuple("abcdefghijklmnop")


class Counting(TabularLM):
    """After id x comes x + 1 (modulo the vocabulary), with the share ``certainty``; the rest is spread evenly."""

    def __init__(
        self,
        eos_id: int | None = None,
        max_context: int = 2**20,
        certainty: float = 1.0,
        pieces: Sequence[str] | None = None,
    ) -> None:
        spread = torch.full((SIZE, SIZE), (1.0 - certainty) / SIZE, dtype=torch.float64)
        super().__init__(spread + certainty * torch.eye(SIZE, dtype=torch.float64).roll(1, 1), eos_id, max_context)
        self.tokenizer = None if pieces is None else letters(pieces)


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


# Logits that no law can be made of.
POISONS = {
    "nan": [0.0] * 5 + [math.nan] + [0.0] * 10,
    "plus infinity": [0.0] * 5 + [math.inf] + [-math.inf] * 10,
    "only minus infinity": [-math.inf] * SIZE,
    "only nan": [math.nan] * SIZE,
}


def letters(pieces: Sequence[str]) -> Tokenizer:
    """Return a tokenizer whose id i reads ``pieces[i]`` ("<0xC3>" is a byte); strings are cut into characters."""
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token=pieces[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def counts(first: int, number: int) -> list[int]:
    """Return ``number`` ids that count on from ``first``."""
    return [(first + i) % SIZE for i in range(number)]


def guessing(num_draft_tokens: int, num_right: int = 99) -> StatelessSource:
    """Return a source whose drafts are right for ``num_right`` tokens and wrong behind them."""

    @stateless(num_draft_tokens=num_draft_tokens)
    def guess(ids: list[int], budget: int) -> list[int]:
        return [x if i < num_right else (x + 1) % SIZE for i, x in enumerate(counts(ids[-1] + 1, budget))]

    return guess
