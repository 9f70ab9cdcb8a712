"""What a head learns on: ids in one row, which of them count, and a part held out by hash."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from oracles.factory.dialogues.dialogue_parts import HELD_OUT, Conversation
from oracles.factory.training.training_text import read_own_text

# Ids of a text whose hash decides whether it is held out.
_HASHED = 64


@dataclass(frozen=True, eq=False)
class HeadText:
    """Texts in one row.

    Attributes:
        ids: ``[S]`` int32.
        counts: ``[S]`` bool, which ids may be drafted and are learned; the others are only read.
    """

    ids: Tensor
    counts: Tensor

    @classmethod
    def of(cls, parts: Iterable[tuple[Tensor, Tensor]]) -> "HeadText":
        """Return texts one after the other; a part has the ids ``[S]`` of one, and ``[S]`` bool, which of them count.

        Raises:
            ValueError: there is none.
        """
        pairs = list(parts)
        if not pairs:
            raise ValueError("there is no text for this part: give more of it")
        return cls(torch.cat([ids for ids, _ in pairs]), torch.cat([counts for _, counts in pairs]))

    def frequent(self, count: int, vocab_size: int) -> Tensor:
        """Return ``[count]`` int64, rising: the most frequent of the ids that count; among equals the lowest."""
        numbers = self.numbers(vocab_size)
        return numbers.argsort(descending=True, stable=True)[:count].sort().values

    def numbers(self, vocab_size: int) -> Tensor:
        """Return ``[V]`` how often each id occurs among those that count."""
        return torch.bincount(self.ids[self.counts].long(), minlength=vocab_size)

    def rarest(self, vocab_size: int) -> int:
        """Return the rarest id of the text; among equals the lowest."""
        return int(torch.bincount(self.ids.long(), minlength=vocab_size).argmin())

    def spread(self, count: int, length: int) -> Tensor:
        """Return the places ``[count, length + 1]`` of windows spread evenly over the row.

        Raises:
            ValueError: the row is shorter than a window.
        """
        last = len(self.ids) - length - 1
        if last < 0:
            raise ValueError(f"{len(self.ids)} held-out tokens are less than a window of {length + 1}: give more text")
        starts = torch.linspace(0, last, min(count, last + 1)).long()
        return starts.unsqueeze(1) + torch.arange(length + 1)


def own_text(path: Path, end: int, *, held_out: bool) -> HeadText:
    """Return what an oracle wrote (``oracles.factory.own_text``): the texts that are held out, or all others.

    Args:
        path: safetensors with ``tokens``, texts between two ``end`` ids.
        end: the id that ends a text.
        held_out: 8 of 256 texts are, by a hash of their beginning.

    Raises:
        ValueError: there is no such text, see ``read_own_text`` too.
    """
    tokens = read_own_text(path)
    bounds = (tokens == end).nonzero()[:, 0].tolist()
    texts = [tokens[begin:after] for begin, after in pairwise(bounds) if after > begin + 1]
    kept = [text for text in texts if _is_held_out(text) == held_out]
    if not kept:
        part = "held out" if held_out else "learned on"
        told = f"none of its {len(texts)} texts is {part} ({HELD_OUT} of 256 are held out, by a hash)"
        raise ValueError(f"{path}: {told}: give some 100 texts or more")
    return HeadText.of((text, torch.ones(len(text), dtype=torch.bool)) for text in kept)


def _is_held_out(text: Tensor) -> bool:
    begin = text[:_HASHED].numpy().astype("<i4").tobytes()
    return hashlib.sha256(begin).digest()[0] < HELD_OUT


def dialogues(conversations: Iterable[Conversation], begin: Sequence[int]) -> HeadText:
    """Return conversations, of which the answers count.

    Args:
        conversations: such as ``Shards.split`` yields.
        begin: ids before the first user's words.

    Raises:
        ValueError: there is no conversation.
    """
    return HeadText.of(_row(one, begin) for one in conversations)


def _row(one: Conversation, begin: Sequence[int]) -> tuple[Tensor, Tensor]:
    ids = torch.tensor([*begin, *one.ids.astype(np.int64).tolist()], dtype=torch.int32)
    counts = torch.zeros(len(ids), dtype=torch.bool)
    for start, stop in one.answers:
        counts[len(begin) + start : len(begin) + stop] = True
    return ids, counts
