"""Draft with a head that reads the oracle's hidden states and steps token by token: a chain, or a tree of any shape."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from specdec.contracts import (
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
    SteppingHead,
    check_vocabulary,
)
from specdec.drafting import (
    ChainSampler,
    Frontier,
    HeadModel,
    TreeSampler,
    check_host,
    check_temperature,
    check_tree,
    tree_offers,
)
from specdec.drafting.lengths import LengthPolicy, chain_offers, depth_limits, resolve
from specdec.drafting.shapes import TreeShape


class Eagle3:
    """Draft tokens sampled from a small head that goes on from what the oracle's layers made of the text so far.

    After a step the head reads every token that stands beside the oracle's hidden states of the position before; from
    the pending token on it goes on with features of its own.

    Args:
        head: a stepping head, such as ``oracles.load_head`` returns for EAGLE-3; bound to the decoder's oracle.
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default 5.
        length: a length policy.
        tree: the shape of the drafts, in place of a length. EAGLE-2's dynamic trees are ``ReRanked`` (deterministic
            candidates only) and ``Grown``.
        temperature: of the drafts; None follows each request, 0 drafts greedily. The request's other warping applies
            either way.

    Raises:
        ValueError: an argument out of range, a tree beside a length, a tree that is re-ranked and not greedy
            (``temperature=0``: to re-rank drawn nodes would move the output's law); in ``open``, another vocabulary
            than the oracle's, or an oracle without the head's layers.

    Guarantee: the declared law of a node is the one its token was drawn from; greedy tokens are point masses. Lossless
        under every lossless rule. Keys that were made of the head's own features are taken back after every step. A row
        of a single id has no hidden states yet, and drafts nothing in its first step. Reproducible. Inside ``Merged``
        and ``Cascade`` it reads the hidden states of what other members drafted too.
    Cost: one pass of the head over the tokens that stand since the last one, then one a further token (trees: a
        level), and a cache of one layer and a feature a slot. If the head offers it, all passes of a chain, or of a
        tree whose shape is known beforehand, are one call (see ``ChainSampler``, ``TreeSampler``). The oracle hands
        over the outputs of the head's layers at all scored nodes, and of the prompt: B * N * D numbers a layer, and
        one gather.
    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840); trees: Li et al. 2024 (EAGLE-2, arXiv 2406.16858).
    Deviations: EAGLE's own trees re-rank at every temperature, and another rule verifies them; here drawn nodes stay.
    """

    name = "eagle3"

    def __init__(
        self,
        head: SteppingHead,
        num_draft_tokens: int | None = None,
        length: LengthPolicy | None = None,
        temperature: float | None = None,
        tree: TreeShape | None = None,
    ) -> None:
        check_temperature(temperature)
        _check_head(head)
        self.head, self.temperature, self.tree = head, temperature, tree
        if tree is None:
            self.length = resolve(num_draft_tokens, length, default=5)
        else:
            check_tree(tree, temperature, num_draft_tokens, length)

    @property
    def needs(self) -> Needs:
        """What it asks of the engine."""
        return Needs(hidden=self.head.layers)

    @property
    def vocab_size(self) -> int:
        """The vocabulary drafted from, the oracle's."""
        return self.head.vocab_size

    @property
    def offers(self) -> Offers:
        """What it declares."""
        if self.tree is not None:
            return tree_offers(self.tree, laws=self.temperature != 0)
        return chain_offers(self.length, laws=self.temperature != 0)

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        """Return a session for a run."""
        check_vocabulary(f"draft {self.name!r}", self.head.vocab_size, self.head.tokenizer, oracle)
        check_host(self.name, self.head, oracle)
        if self.tree is not None:
            model = HeadModel(self.head, num_rows, capacity, oracle.device, self.tree.max_scored)
            return _TreeSession(model, TreeSampler(self.tree, self.temperature, oracle.device))
        model = HeadModel(self.head, num_rows, capacity, oracle.device, self.length.max_depth)
        return _ChainSession(model, ChainSampler(self.length.open(num_rows), self.temperature, oracle.device))


def _check_head(head: SteppingHead) -> None:
    """Raise ValueError if a head does not step token by token."""
    lacks = [name for name in ("layers", "put", "new_cache", "score", "vocab_size") if not hasattr(head, name)]
    if lacks:
        raise ValueError(
            f"head is a {type(head).__name__} and lacks {', '.join(lacks)}: give a stepping head, such as "
            "oracles.load_head returns for EAGLE-3 (exit heads are for drafts.EarlyExit)"
        )


class _Session(DraftSession):
    def __init__(self, model: HeadModel) -> None:
        self.model = model

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        self.model.begin(rows, prompts, scores)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        self.model.sync(rows, keep, new_ids, scores)

    def end(self, rows: IntArray) -> None:
        self.model.end(rows)


class _TreeSession(_Session):
    def __init__(self, model: HeadModel, sampler: TreeSampler) -> None:
        super().__init__(model)
        self.sampler = sampler

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:

        def next_logits(frontier: Frontier) -> Tensor:
            if not frontier.tokens.shape[1]:
                return self.model.catch_up(rows, context, frontier.live)
            return self.model.grow(rows, frontier)

        room = self.model.room(rows, context.num_committed)
        return self.sampler(context, budget, room, randomness, next_logits, self.model.grower(rows, context))


class _ChainSession(_Session):
    def __init__(self, model: HeadModel, sampler: ChainSampler) -> None:
        super().__init__(model)
        self.sampler = sampler

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        self.sampler.length.begin(rows)
        super().begin(rows, prompts, scores)

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:

        def next_logits(depth: int, tokens: Tensor, live: IntArray) -> Tensor:
            if depth == 0:
                return self.model.catch_up(rows, context, live)
            return self.model.advance(rows, tokens[:, depth - 1 : depth], live)

        limits = depth_limits(self.sampler.length, rows, context.num_committed, budget)
        limits = np.minimum(limits, self.model.room(rows, context.num_committed))
        return self.sampler(rows, context, limits, randomness, next_logits, self.model.follower(context))
