"""Oracles whose greedy text is known beforehand (they count), sources that guess it, and a tokenizer of letters."""

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
