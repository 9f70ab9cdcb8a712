"""A head at work: the hidden states on their way to it, its cache, catch-up and rollback."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import (
    Cache,
    Context,
    Draft,
    DraftPrefixes,
    Features,
    Head,
    IntArray,
    Scores,
    SteppingHead,
    pad_rows,
)
from specdec.drafting.model import DraftModel


class HiddenStates:
    """Hand a head the hidden states of every position that stands, and take back its memory of all others.

    A session whose source has ``Needs(hidden=head.layers)`` calls ``begin``, ``sync`` and ``end`` with the arguments
    that it is called with. Between steps the head knows the positions of all ids of a row but the pending one.

    Args:
        head: takes the features.
        cache: of the head. What it holds of a position is made of the features of that position and of earlier ones.
        num_rows: slots of the run.
        capacity: positions that the head can serve; it is given no others.

    Attributes:
        known: ``[num_rows]`` how many positions the head was given, from 0 on.

    Cost: a step takes what the head makes of the root and the accepted nodes.
    """

    def __init__(self, head: Head, cache: Cache, num_rows: int, capacity: int) -> None:
        self.head, self.cache, self.capacity = head, cache, capacity
        self.known: IntArray = np.zeros(num_rows, dtype=np.int64)

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """Take in new requests: the positions of their prompts before the last id's, if there are any.

        Args:
            rows, prompts, scores: see ``DraftSession.begin``.

        Raises:
            ValueError: the scores lack the layers.
        """
        self.cache.reset(rows)
        self.known[rows] = 0
        counts = np.array([len(prompt) - 1 for prompt in prompts], dtype=np.int64)
        if counts.any():
            self._put(rows, np.zeros_like(counts), counts, scores)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None = None) -> None:
        """Take back what followed the first ``keep[b] - 1`` positions, and take in those up to the new pending id.

        Args:
            rows, keep, new_ids, scores: see ``DraftSession.sync``.

        Raises:
            ValueError: the scores lack the layers or the path, or positions would be left out.
        """
        starts = keep - 1
        missing = np.minimum(starts, self.capacity) - self.known[rows]
        if max(missing.tolist(), default=0) > 0:
            row = int(rows[(missing > 0).argmax()])
            raise ValueError(
                f"the hidden states of row {row} after position {self.known[row]} never came: sync with scores"
            )
        self.forget(rows, starts)
        if scores is not None and scores.path is None:
            raise ValueError("scores say nothing of the path: a source that reads hidden layers needs Scores.path")
        self._put(rows, starts, (new_ids >= 0).sum(1), scores, None if scores is None else scores.path)

    def forget(self, rows: IntArray, ends: IntArray) -> None:
        """Take back the head's memory of positions from ``ends`` ``[B]`` on in slots ``rows`` ``[B]``."""
        self.cache.truncate(rows, np.minimum(self.cache.lengths[rows], ends))
        self.known[rows] = np.minimum(self.known[rows], ends)

    def end(self, rows: IntArray) -> None:
        """Forget finished requests; see ``DraftSession.end``."""
        self.forget(rows, np.zeros_like(rows))

    def check(self, rows: IntArray, num_committed: IntArray) -> None:
        """Check that all positions of rows but the pending id's are known, as far as the head goes.

        Args:
            rows: ``[B]`` slots.
            num_committed: ``[B]`` ids that stand.

        Raises:
            ValueError: positions of a row are not known, or too many are.
        """
        wanted = np.minimum(num_committed - 1, self.capacity)
        if (self.known[rows] != wanted).any():
            raise ValueError(
                f"a head knows positions {self.known[rows].tolist()} of rows {rows.tolist()}, and needs those of "
                f"{wanted.tolist()}: sync with scores after every step"
            )

    def _put(
        self,
        rows: IntArray,
        starts: IntArray,
        counts: IntArray,
        scores: Scores | None,
        path: IntArray | None = None,
    ) -> None:
        """Give the head ``counts[b]`` positions from ``starts[b]`` on, but for those beyond its capacity.

        ``path`` ``[B, M]`` says which nodes they are; None: the first ones, in order.
        """
        if scores is None or len(scores.hidden) != len(self.head.layers):
            raise ValueError(
                f"a head reads the outputs of layers {self.head.layers} and was given none of them: its source must "
                "declare Needs(hidden=head.layers), and be told the scores of every step"
            )
        starts = np.minimum(starts, self.capacity)
        counts = np.minimum(counts, self.capacity - starts)
        width = int(counts.max())
        if path is None:
            features = Features(rows, starts, counts, tuple(layer[:, :width] for layer in scores.hidden))
        else:
            features = Features(rows, starts, counts, scores.hidden, path[:, :width])
        self.head.put(features, self.cache)
        self.known[rows] = starts + counts


def own_ids(ids: IntArray) -> IntArray:
    """Return the ids ``[..., L - 1]`` that a head reads of a row's ``[..., L]``: id t + 1 beside hidden states t."""
    return ids[..., 1:]


def of_each_id(logits: Tensor, head: Head) -> Tensor:
    """Return a head's logits ``[..., V]``, as they are.

    Raises:
        ValueError: they are not of its vocabulary.
    """
    if logits.shape[-1] != head.vocab_size:
        raise ValueError(
            f"head is of type {type(head).__name__}, has vocab_size={head.vocab_size} and scores "
            f"{logits.shape[-1]} ids: return a logit for each id, -inf for those that it never drafts"
        )
    return logits


class HeadModel(HiddenStates, DraftModel):
    """Keep a stepping head's cache in step with the ids that stand in each row, and with their hidden states.

    To the head a row lacks its first id, and so does its context: id j of the head is read beside the hidden states of
    position j. A row of a single id has none yet, and drafts nothing.

    Args:
        head: that drafts.
        num_rows: slots of the run.
        capacity: ids a row may hold; the head's own context may be shorter.
        device: where logits are handed back.
        slack: nodes that a draft may score, so that one pass catches up with all that can have been accepted.

    Guarantee: keys that stand were made of the oracle's hidden states. Those of drafted tokens, whose features were
        the head's own, are taken back at every ``sync``, and made again in the next catch-up.
    Cost: the head's cache, and a pass a depth or level; the first reads every token accepted since.
    """

    def __init__(self, head: SteppingHead, num_rows: int, capacity: int, device: torch.device, slack: int) -> None:
        DraftModel.__init__(self, head, num_rows, capacity, device, slack)
        HiddenStates.__init__(self, head, self.cache, num_rows, self.capacity)

    def share(self, prefixes: DraftPrefixes) -> None:
        """Share nothing: keys were made of hidden states, which come with each prompt's own pass."""

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None = None) -> None:
        """Take in new requests; arguments as in ``DraftSession.begin``.

        Raises:
            ValueError: the scores lack the layers.

        Cost: the prompts' passes, in chunks.
        """
        super().begin(rows, prompts, scores)
        rests = [own_ids(prompt)[: self.capacity] for prompt in prompts]
        ends = np.array([len(rest) for rest in rests], dtype=np.int64)
        ids = pad_rows(rests)
        some = np.flatnonzero(ends)
        self.come_near(rows[some], ids[some], ends[some])

    def room(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        """Return ``[B]`` how many tokens a row may draft: none after a single id, or beyond the head's own context.

        Raises:
            ValueError: hidden states of a row never came.
        """
        self.check(rows, num_committed)
        return np.where(num_committed > 1, super().room(rows, num_committed - 1), 0)

    def own_context(self, rows: IntArray, context: Context) -> Context:
        """Return the context of rows ``[B]`` as the head sees it: ids ``[B, L - 1]``, and one less that stands."""
        return replace(context, ids=own_ids(context.ids), num_committed=context.num_committed - 1)

    def catch_up(self, rows: IntArray, context: Context, live: IntArray, depth: int = 1) -> Tensor:
        """Score the ids that stand and have no keys yet, beside their hidden states; see ``DraftModel.catch_up``.

        Raises:
            ValueError: the head's logits are not of its vocabulary.
        """
        return of_each_id(super().catch_up(rows, context, live), self.head)

    def note(self, rows: IntArray, starts: IntArray, draft: Draft) -> None:
        """Remember nothing: no key of a drafted token stands. See ``RunModel.note``."""
