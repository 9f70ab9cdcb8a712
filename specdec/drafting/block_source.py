"""Sources that draft from a head's blocks: a chain, or a tree of a fixed shape, one pass of the head a step."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from specdec.contracts import (
    Block,
    BlockHead,
    Budget,
    Context,
    Draft,
    DraftSession,
    IntArray,
    Needs,
    Offers,
    Oracle,
    Randomness,
    Scores,
    check_vocabulary,
)
from specdec.drafting.chain_sampler import ChainSampler, check_temperature
from specdec.drafting.hidden_states import HiddenStates, check_host
from specdec.drafting.lengths import LengthPolicy, chain_offers, depth_limits, resolve
from specdec.drafting.shapes import TreeShape
from specdec.drafting.tree_sampler import Frontier, TreeSampler, check_tree, tree_offers
from specdec.laws import scatter_rows, take
from specdec.transfers import on_device


class BlockSource:
    """What the sources with a ``specdec.contracts.BlockHead`` share; each says its name and what its head is.

    Args:
        head: made for the decoder's oracle.
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default: all that a block
            has laws for.
        length: a length policy.
        temperature: of the drafts; None follows each request, 0 drafts greedily.
        tree: the shape of the drafts, in place of a length.

    Raises:
        ValueError: a head of another kind, an argument out of range, more tokens than a block has laws for, a tree
            beside a length, a tree that is re-ranked and not greedy; in ``open``, another vocabulary than the oracle's.
    """

    name: str

    def __init__(
        self,
        head: BlockHead,
        num_draft_tokens: int | None = None,
        length: LengthPolicy | None = None,
        temperature: float | None = None,
        tree: TreeShape | None = None,
    ) -> None:
        check_temperature(temperature)
        if (drafter := getattr(head, "drafter", None)) != self.name:
            fits = "another source" if drafter is None else f"the source {drafter!r}"
            raise ValueError(f"draft {self.name!r} was given a head that is made for {fits}: {type(head).__name__}")
        self.head, self.temperature, self.tree = head, temperature, tree
        if tree is None:
            self.length = resolve(num_draft_tokens, length, default=head.num_laws)
        else:
            check_tree(tree, temperature, num_draft_tokens, length)
        if self.offers.max_depth > head.num_laws:
            raise ValueError(
                f"drafts of {self.offers.max_depth} tokens are asked for, and a block of this head has laws for "
                f"{head.num_laws}: ask for no more"
            )

    @property
    def needs(self) -> Needs:
        """What it asks of the engine."""
        return Needs(hidden=self.head.layers)

    @property
    def vocab_size(self) -> int:
        """The vocabulary drafted from; None: whatever ids the prompts hold."""
        return self.head.vocab_size

    @property
    def offers(self) -> Offers:
        """What it declares."""
        if self.tree is not None:
            return tree_offers(self.tree, laws=self.temperature != 0)
        return chain_offers(self.length, laws=self.temperature != 0)

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        """Return a session for a run."""
        check_vocabulary(f"draft {self.name!r}", self.head.vocab_size, None, oracle)
        check_host(self.name, self.head, oracle)
        blocks = _Blocks(self.head, num_rows, capacity)
        if self.tree is not None:
            return _TreeSession(blocks, TreeSampler(self.tree, self.temperature, oracle.device))
        return _ChainSession(blocks, ChainSampler(self.length.open(num_rows), self.temperature, oracle.device))


class _Blocks:
    """A head at work on one run: what it knows of each row.

    Args:
        head: whose.
        num_rows: slots.
        capacity: ids that a row may hold; the head's own context may be shorter.
    """

    def __init__(self, head: BlockHead, num_rows: int, capacity: int) -> None:
        self.head, capacity = head, min(capacity, head.max_context)
        self.cache = head.new_cache(num_rows, capacity)
        self.states = HiddenStates(head, self.cache, num_rows, capacity)

    def room(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        """Return ``[B]`` how many tokens each row may draft: none after a single id, which nothing is known before."""
        self.states.check(rows, num_committed)
        most = np.minimum(self.head.num_laws, self.head.max_context - num_committed)
        return np.where(num_committed > 1, np.maximum(most, 0), 0)


class _Step:
    """The laws of one step's blocks; what rows draft is known from the first question on.

    Args:
        blocks: the head at work.
        rows: ``[B]``.
        context: of those rows.
        depth: the deepest law that may be asked for, and 1.
    """

    def __init__(self, blocks: _Blocks, rows: IntArray, context: Context, depth: int) -> None:
        self._blocks, self._rows, self._context, self._depth = blocks, rows, context, depth
        self._block: Block | None = None
        self._level = self._first = 0

    def chain_logits(self, depth: int, tokens: Tensor, live: IntArray) -> Tensor:
        """Return logits ``[B, 1, V]`` as ``ChainSampler`` asks for them."""
        block = self._opened(live, tokens)
        return scatter_rows(block.logits(depth, self._before(depth, tokens)), self._live, len(self._rows))

    def chain_confidence(self, depth: int, tokens: Tensor) -> Tensor:
        """Return ``[B, 1]`` the head's confidences as ``ChainSampler`` asks for them: after that depth's logits."""
        assert self._block is not None
        return scatter_rows(self._block.confidence(depth, self._before(depth, tokens)), self._live, len(self._rows))

    def tree_logits(self, frontier: Frontier) -> Tensor:
        """Return logits ``[B, size, V]`` as ``TreeSampler`` asks for them."""
        block = self._opened(frontier.live, frontier.tokens)
        if not frontier.tokens.shape[1]:
            logits = block.logits(0, self._pending)
        else:
            self._level += 1
            previous = take(frontier.tokens[:, frontier.first :], self._live)
            above = np.maximum(frontier.parents[self._live, frontier.first :] - self._first, 0)
            logits = block.logits(self._level, previous, on_device(above, previous.device))
            self._first = frontier.first
        return scatter_rows(logits, self._live, len(self._rows))

    def _before(self, depth: int, tokens: Tensor) -> Tensor:
        """Return ``[R, 1]`` the ids before those at a depth."""
        return take(tokens[:, depth - 1 : depth], self._live) if depth else self._pending

    def _opened(self, live: IntArray, like: Tensor) -> Block:
        if self._block is None:
            rows, ends = self._rows[live], self._context.num_committed[live]
            self._live = live
            self._pending = on_device(self._context.ids[live, ends - 1], like.device).unsqueeze(1)
            blocks = self._blocks
            self._block = blocks.head.open_block(blocks.cache, rows, self._pending.squeeze(1), self._depth)
        return self._block


class _Session(DraftSession):
    def __init__(self, blocks: _Blocks) -> None:
        self.blocks = blocks

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        self.blocks.states.begin(rows, prompts, scores)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        self.blocks.states.sync(rows, keep, new_ids, scores)

    def end(self, rows: IntArray) -> None:
        self.blocks.states.end(rows)


class _ChainSession(_Session):
    def __init__(self, blocks: _Blocks, sampler: ChainSampler) -> None:
        super().__init__(blocks)
        self.sampler = sampler

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        self.sampler.length.begin(rows)
        super().begin(rows, prompts, scores)

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        limits = depth_limits(self.sampler.length, rows, context.num_committed, budget)
        limits = np.minimum(limits, self.blocks.room(rows, context.num_committed))
        step = _Step(self.blocks, rows, context, int(limits.max()))
        confidence = step.chain_confidence if self.blocks.head.has_confidence else None
        return self.sampler(rows, context, limits, randomness, step.chain_logits, confidence=confidence)


class _TreeSession(_Session):
    def __init__(self, blocks: _Blocks, sampler: TreeSampler) -> None:
        super().__init__(blocks)
        self.sampler = sampler

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        room = self.blocks.room(rows, context.num_committed)
        step = _Step(self.blocks, rows, context, min(self.sampler.shape.max_depth, self.blocks.head.num_laws))
        return self.sampler(context, budget, room, randomness, step.tree_logits)
