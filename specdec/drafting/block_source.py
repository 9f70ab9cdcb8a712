"""Sources that draft from a head's blocks: a chain, or a tree of a fixed shape, one pass of the head a step."""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import (
    BlockHead,
    BlockLaws,
    ChainingBlockHead,
    ChainWatch,
    Context,
    DeviceBlockHead,
    Draft,
    Draws,
    IntArray,
    Oracle,
    WholeDrafts,
    can_chain_on_device,
    can_draft_natively,
)
from specdec.drafting.chain_sampler import Follow, FollowOnDevice
from specdec.drafting.head_model import HiddenStates, of_each_id
from specdec.drafting.lengths import LengthPolicy
from specdec.drafting.model_source import HeadSource, RunModel, check_drafter, check_parts
from specdec.drafting.shapes import TreeShape
from specdec.drafting.tree_sampler import Frontier
from specdec.laws import scatter_rows, take
from specdec.transfers import on_device

_PARTS = (
    "oracle", "layers", "vocab_size", "new_cache", "put", "num_laws", "max_context", "has_confidence", "chains",
    "open_block",
)  # fmt: skip


class BlockSource(HeadSource):
    """What the sources with a ``specdec.contracts.BlockHead`` share; each says its name and what its head is.

    Args:
        head: made for the decoder's oracle.
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default: all that a block
            has laws for.
        length: a length policy.
        temperature: of the drafts; None follows each request, 0 drafts greedily.
        tree: the shape of the drafts, in place of a length.

    Raises:
        ValueError: a head of another kind, or one that lacks a part; an argument out of range, more tokens than a block
            has laws for, a tree beside a length, a tree that is re-ranked and not greedy; in ``open``, another
            vocabulary than the oracle's.
    """

    head: BlockHead

    def __init__(
        self,
        head: BlockHead,
        num_draft_tokens: int | None = None,
        length: LengthPolicy | None = None,
        temperature: float | None = None,
        tree: TreeShape | None = None,
    ) -> None:
        check_drafter(head, self.name)
        check_parts(head, _PARTS, "give a block head, such as oracles.load_head returns for this source")
        super().__init__(num_draft_tokens, length, temperature, tree, default=head.num_laws)
        self.head = head
        if self.offers.max_depth > head.num_laws:
            raise ValueError(
                f"drafts of {self.offers.max_depth} tokens are asked for, and a block of this head has laws for "
                f"{head.num_laws}: ask for no more"
            )

    def open_model(self, oracle: Oracle, num_rows: int, capacity: int) -> RunModel:
        """Return the head at work; arguments as in ``DraftSource.open``."""
        return _BlockModel(self.head, num_rows, capacity, oracle.device)


class _BlockModel(HiddenStates, RunModel):
    """A head at work on one run: what it knows of each row, and the blocks of the step that is being drafted.

    What rows draft in a step is known from ``catch_up`` on.

    Args:
        head: that drafts.
        num_rows: slots.
        capacity: ids that a row may hold; the head's own context may be shorter.
        device: where drafts lie.
    """

    head: BlockHead
    _block: BlockLaws | None = None
    _live: IntArray  # indices of the rows that have one
    _previous: Tensor  # [R, S] the ids before those that the latest logits are of

    def __init__(self, head: BlockHead, num_rows: int, capacity: int, device: torch.device) -> None:
        capacity = min(capacity, head.max_context)
        super().__init__(head, head.new_cache(num_rows, capacity), num_rows, capacity)
        self.has_confidence, self.device = head.has_confidence, device

    def room(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        """Return ``[B]`` how many tokens each row may draft: none after a single id, which has no states before it."""
        self.check(rows, num_committed)
        most = np.minimum(self.head.num_laws, self.head.max_context - num_committed)
        return np.where(num_committed > 1, np.maximum(most, 0), 0)

    def catch_up(self, rows: IntArray, context: Context, live: IntArray, depth: int = 1) -> Tensor:
        """Open the blocks of some rows.

        Raises:
            ValueError: the head's logits are not of its vocabulary; also in ``advance`` and ``grow``.
        """
        self._live, self._batch, self._depth, self._first = live, len(rows), 0, 0
        pending = on_device(context.pending[live], self.device)
        self._previous = pending.unsqueeze(1)
        self._block = self.head.open_block(self.cache, rows[live], pending, min(depth, self.head.num_laws))
        return self._scatter(of_each_id(self._block.logits(0, self._previous), self.head))

    def follower(self, context: Context) -> Follow | None:
        """Return what draws along whole blocks if the head does that by itself, else None."""
        return self._follow if can_draft_natively(self.head, context.warping) else None

    def _follow(
        self, rows: IntArray, context: Context, limits: IntArray, watch: ChainWatch | None, draws: Draws | None
    ) -> WholeDrafts:
        head, adjustments = cast(ChainingBlockHead, self.head), context.warping.adjustments
        return head.follow_blocks(self.cache, rows, context.pending, limits, watch, draws, adjustments)

    def device_follower(self, context: Context) -> FollowOnDevice | None:
        """Return what has the head's device follow greedy blocks if it can do that, else None."""
        return self._follow_on_device if can_chain_on_device(self.head, context.warping) else None

    def _follow_on_device(self, rows: IntArray, context: Context, limits: IntArray) -> Draft:
        return cast(DeviceBlockHead, self.head).device_blocks(self.cache, rows, context.pending, limits)

    def note(self, rows: IntArray, starts: IntArray, draft: Draft) -> None:
        """Let go of the blocks, which are as wide as the vocabulary."""
        self._block = None

    def advance(self, rows: IntArray, tokens: Tensor, live: IntArray) -> Tensor:
        """Return the laws of the next depth; rows that no longer draft are read too."""
        return self._next(take(tokens, self._live))

    def grow(self, rows: IntArray, frontier: Frontier) -> Tensor:
        """Return the laws of the next depth below each node."""
        above = np.maximum(frontier.parents[self._live, frontier.first :] - self._first, 0)
        self._first = frontier.first
        previous = take(frontier.tokens[:, frontier.first :], self._live)
        return self._next(previous, on_device(above, previous.device))

    def confidence(self) -> Tensor:
        """Return ``[B, 1]`` the head's belief in the token that is drawn next."""
        assert self._block is not None
        return self._scatter(self._block.confidence(self._depth, self._previous))

    def _next(self, previous: Tensor, above: Tensor | None = None) -> Tensor:
        assert self._block is not None
        self._previous, self._depth = previous, self._depth + 1
        return self._scatter(of_each_id(self._block.logits(self._depth, previous, above), self.head))

    def _scatter(self, values: Tensor) -> Tensor:
        return scatter_rows(values, self._live, self._batch)
