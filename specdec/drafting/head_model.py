"""A head at work that drafts token by token: its cache, the features that it reads, catch-up and rollback."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import Context, IntArray, Scores, SteppingHead, pad_rows
from specdec.drafting.chain_sampler import Follow
from specdec.drafting.hidden_states import HiddenStates
from specdec.drafting.model import DraftModel
from specdec.drafting.model_source import RunModel
from specdec.drafting.planned_trees import GrowWhole
from specdec.drafting.tree_sampler import Frontier


def own_ids(ids: IntArray) -> IntArray:
    """Return the ids ``[..., L - 1]`` that a head reads of a row's ``[..., L]``: id t + 1 beside hidden states t."""
    return ids[..., 1:]


def _own(context: Context) -> Context:
    """Return a context as a head has it."""
    return replace(context, ids=own_ids(context.ids), num_committed=context.num_committed - 1)


class HeadModel(HiddenStates, RunModel):
    """Keep a stepping head's cache in step with the ids that stand in each row, and with their hidden states.

    To the head a row has one id less, without the first, and so has its context: id j of the head is read beside the
    hidden states of position j. A row of a single id has none yet, and drafts nothing.

    Args:
        head: drafts.
        num_rows: slots of the run.
        capacity: ids a row may hold; the head's own context may be shorter.
        device: where logits are handed back.
        slack: nodes that a draft may score, so that one pass catches up with all that can have been accepted.

    Guarantee: keys that stand were made of the oracle's hidden states. Those of drafted tokens, whose features were
        the head's own, are taken back at every ``sync``, and made again in the next catch-up.
    Cost: the head's cache, and a pass a depth or level; the first reads every token accepted since.
    """

    def __init__(self, head: SteppingHead, num_rows: int, capacity: int, device: torch.device, slack: int) -> None:
        self._model = DraftModel(head, num_rows, capacity, device, slack)
        super().__init__(head, self._model.cache, num_rows, self._model.capacity)

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """Take in new requests. Cost: the prompts' passes, in chunks."""
        super().begin(rows, prompts, scores)
        rests = [own_ids(prompt)[: self.capacity] for prompt in prompts]
        ends = np.array([len(rest) for rest in rests], dtype=np.int64)
        ids = pad_rows(rests)
        some = np.flatnonzero(ends)
        self._model.come_near(rows[some], ids[some], ends[some])

    def room(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        """Return ``[B]`` how many tokens a row may draft: none after a single id, or beyond the head's own context.

        Raises:
            ValueError: hidden states of a row never came.
        """
        self.check(rows, num_committed)
        return np.where(num_committed > 1, self._model.room(rows, num_committed - 1), 0)

    def catch_up(self, rows: IntArray, context: Context, live: IntArray, depth: int = 1) -> Tensor:
        """Score the ids that stand and have no keys yet, beside their hidden states; see ``DraftModel.catch_up``.

        Raises:
            ValueError: the head's logits are not of its vocabulary.
        """
        logits, head = self._model.catch_up(rows, _own(context), live), self._model.model
        if logits.shape[-1] != head.vocab_size:
            raise ValueError(
                f"head is of type {type(head).__name__}, has vocab_size={head.vocab_size} and scores "
                f"{logits.shape[-1]} ids: return a logit for each id, -inf for those that it never drafts"
            )
        return logits

    def advance(self, rows: IntArray, tokens: Tensor, live: IntArray) -> Tensor:
        """Score the token drafted last, beside the head's own feature; see ``DraftModel.advance``."""
        return self._model.advance(rows, tokens, live)

    def grow(self, rows: IntArray, frontier: Frontier) -> Tensor:
        """Score the nodes of a tree, each beside the feature of its parent; see ``DraftModel.grow``."""
        return self._model.grow(rows, frontier)

    def follower(self, context: Context) -> Follow | None:
        """Return what drafts whole chains if the head does that by itself, else None; see ``DraftModel.follower``."""
        follow = self._model.follower(context)
        if follow is None:
            return None
        return lambda rows, context, *asked: follow(rows, _own(context), *asked)

    def grower(self, rows: IntArray, context: Context) -> GrowWhole | None:
        """Return what drafts whole trees if the head does that by itself, else None; see ``DraftModel.grower``."""
        return self._model.grower(rows, _own(context))
