"""Conversations as one row of text that a draft learns on, and what the teacher said of each token of their answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from oracles.factory.dialogues.dialogue_parts import Conversation, read_part


@dataclass(frozen=True, eq=False)
class Corpus:
    """Conversations in a row, each behind the turn of the system.

    Attributes:
        ids: ``[S]`` int32.
        answer_of: ``[S]`` int32: which token of the answers this is, -1 outside of them.
        likeliest_ids, likeliest_logprobs: ``[A, 32]`` int32 and float16, what the teacher expected there.
        spans: of each answer the place where its conversation begins, its own first and last place, the last one
            excluded, and the temperature that it was written at.
        kinds: of each of these answers.
    """

    ids: Tensor
    answer_of: Tensor
    likeliest_ids: Tensor
    likeliest_logprobs: Tensor
    spans: tuple[tuple[int, int, int, float], ...]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, conversations: Iterable[Conversation], begin: Sequence[int]) -> "Corpus":
        """Return conversations in their order; ``begin`` are the ids before the first user's words.

        Raises:
            ValueError: there is no conversation, or what the teacher said of one was not kept.
        """
        ids: list[Tensor] = []
        said: list[tuple[Tensor, Tensor]] = []
        spans: list[tuple[int, int, int, float]] = []
        kinds: list[str] = []
        at = 0
        for one in conversations:
            if one.likeliest is None:
                raise ValueError("what the teacher said of a conversation is not there: give parts, not shards")
            first = at + len(begin)
            spans += [(at, first + b, first + e, one.temperature) for b, e in one.answers]
            kinds += [one.kind] * len(one.answers)
            ids.append(torch.tensor([*begin, *one.ids.tolist()], dtype=torch.int32))
            said.append((torch.from_numpy(one.likeliest[0].astype(np.int32)), torch.from_numpy(one.likeliest[1])))
            at += len(ids[-1])
        if not ids:
            raise ValueError("there are no conversations: write some with python -m oracles.factory.dialogues write")
        laws = [torch.cat(part) for part in zip(*said, strict=True)]
        answer_of = torch.full((at,), -1, dtype=torch.int32)
        places = torch.cat([torch.arange(start, stop) for _, start, stop, _ in spans])
        answer_of[places] = torch.arange(len(places), dtype=torch.int32)
        return cls(torch.cat(ids), answer_of, laws[0], laws[1], tuple(spans), tuple(kinds))

    @classmethod
    def read(cls, paths: Sequence[Path], split: str, begin: Sequence[int]) -> "Corpus":
        """Return the conversations of one split of some parts."""
        return cls.of((one for path in paths for one in read_part(path) if one.split == split), begin)

    def mass(self, vocab_size: int) -> Tensor:
        """Return ``[V]`` float64, how many tokens of the answers the teacher expected to be each id."""
        mass = torch.zeros(vocab_size, dtype=torch.float64)
        probs = self.likeliest_logprobs.double().exp().flatten()
        return mass.index_add_(0, self.likeliest_ids.flatten().long(), probs)
