"""What a model says of each token that it writes: its likeliest ids and their log-probabilities."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oracles.factory.dialogues.dialogue_parts import LIKELIEST, Conversation
from specdec.cache import prefill
from specdec.contracts import IntArray, Needs, Oracle, Scores, Want

_BLOCK = 32


class Teacher:
    """An oracle whose last scores are looked at: ``likeliest`` holds what stood first in each row of the last call.

    Args:
        oracle: computes; everything but ``score`` is its own.

    Attributes:
        likeliest: ids ``[B, 32]`` uint16 and log-probabilities ``[B, 32]`` float16 under the unwarped law, of the first
            node of each row, the likeliest first.

    Raises:
        ValueError: the oracle has more ids than 16 bits hold.
    """

    def __init__(self, oracle: Oracle) -> None:
        if oracle.vocab_size > 2**16:
            raise ValueError(
                f"the oracle has {oracle.vocab_size} ids, and parts hold ids of 16 bits: take another oracle"
            )
        self._oracle = oracle
        self.likeliest: tuple[NDArray[np.uint16], NDArray[np.float16]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._oracle, name)

    def score(
        self,
        tokens: Any,
        parents: Any,
        num_nodes: Any,
        cache: Any,
        rows: IntArray,
        want: Want = "all",
        hidden: Sequence[int] = (),
        first: int = 0,
    ) -> Scores:
        """Score as the oracle does, and keep what is likeliest."""
        scores = self._oracle.score(tokens, parents, num_nodes, cache, rows, want, hidden, first)
        if scores.logits is not None:
            self.likeliest = likeliest(scores.logits[:, 0])
        return scores


def likeliest(logits: Tensor) -> tuple[NDArray[np.uint16], NDArray[np.float16]]:
    """Return the ids ``[B, 32]`` of the largest logits ``[B, V]``, and their log-probabilities.

    Cost: two passes over the logits. A block of ids is looked into only if its largest logit is among the best 32 of
    all blocks; no other one can hold an id of the best 32.
    """
    batch, size = logits.shape
    whole = size // _BLOCK * _BLOCK
    blocks = logits[:, :whole].view(batch, -1, _BLOCK)
    best = blocks.amax(dim=2).topk(min(LIKELIEST, blocks.shape[1])).indices
    inside = blocks.gather(1, best.unsqueeze(2).expand(-1, -1, _BLOCK)).flatten(1)
    ids = (best.unsqueeze(2) * _BLOCK + torch.arange(_BLOCK)).flatten(1)
    rest = torch.arange(whole, size).expand(batch, -1)
    values, places = torch.cat([inside, logits[:, whole:]], dim=1).topk(LIKELIEST)
    chosen = torch.cat([ids, rest], dim=1).gather(1, places)
    laws = values - logits.logsumexp(dim=1, keepdim=True)
    return chosen.numpy().astype(np.uint16), laws.numpy().astype(np.float16)


def with_likeliest(one: Conversation, oracle: Oracle, begin: Sequence[int]) -> Conversation:
    """Return a conversation with what its teacher says of each token of the answers.

    *Guarantee*: the numbers that ``Teacher`` noted while it wrote, if the oracle's bits do not depend on the pass.

    Args:
        one: of shards.
        oracle: that wrote it.
        begin: ids before its own.

    Cost: a pass over the conversation, which holds all of its logits at once.
    """
    ids = np.array([*begin, *one.ids.tolist()], dtype=np.int64)
    row = np.zeros(1, dtype=np.int64)
    cache = oracle.new_cache(1, len(ids))
    scores, _ = prefill(oracle, cache, row, [ids], Needs(prompt=True, logits=True))
    assert scores is not None
    assert scores.logits is not None
    places = [len(begin) + at - 1 for start, stop in one.answers for at in range(start, stop)]
    return replace(one, likeliest=likeliest(scores.logits[0, places]))
