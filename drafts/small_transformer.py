"""Draft with a smaller language model on its own cache: a chain token by token, or a tree level by level."""

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
    check_vocabulary,
)
from specdec.drafting import ChainSampler, DraftModel, Frontier, TreeSampler, check_temperature, check_tree, tree_offers
from specdec.drafting.lengths import LengthPolicy, chain_offers, depth_limits, resolve
from specdec.drafting.shapes import TreeShape


class SmallTransformer:
    """Draft tokens sampled from a model that is cheaper than the oracle: a chain, or a tree of any shape.

    Args:
        model: any object with the oracle contract (a transformer, a table, a quantised view, ...). Its true vocabulary
            must be the oracle's.
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default 5.
        length: a length policy.
        tree: the shape of the drafts, in place of a length: ``specdec.Chain``, ``Kary``, ``Paths``, ``Grown`` or
            ``ReRanked``. Siblings are drawn without replacement; greedy ones are the model's best ids.
        temperature: of the drafts; None follows each request, 0 drafts greedily. The request's other warping (top_p,
            penalties along the drafted path, ...) applies either way.

    Raises:
        ValueError: an argument out of range, a tree beside a length, a tree that is re-ranked and not greedy
            (``temperature=0``); in ``open``, another vocabulary than the oracle's, with the reason.

    Guarantee: the declared law of a node is the one its token was drawn from; greedy tokens are point masses. Lossless
        under every lossless rule. A row near the end of the model's own context drafts less, and at its end nothing.
        Rows with a spent budget take part in no pass.
    Cost: one pass of one or two tokens a row to catch up, then one pass per further token, and the model's own cache
        for all rows. If the model offers it, all passes are one call, which asks ``length`` (see ``ChainSampler``).
        Confidences (a gather if drawn, a softmax if greedy) and entropies are computed only if ``length`` reads them.
        A tree takes one pass a level, of the level's nodes that have children. If its shape is known beforehand, that
        is one call too (see ``TreeSampler``, which also says when it waits for the device). The model reads accepted
        nodes again in its next catch-up, which stays one pass.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318). Trees: Miao et
        al. 2024 (SpecInfer, arXiv 2305.09781); Chen et al. 2024 (Sequoia, arXiv 2402.12374).
    """

    name = "small_transformer"
    needs = Needs()

    def __init__(
        self,
        model: Oracle,
        num_draft_tokens: int | None = None,
        length: LengthPolicy | None = None,
        temperature: float | None = None,
        tree: TreeShape | None = None,
    ) -> None:
        check_temperature(temperature)
        self.model, self.temperature = model, temperature
        self.tree = tree
        if tree is None:
            self.length = resolve(num_draft_tokens, length, default=5)
        else:
            check_tree(tree, temperature, num_draft_tokens, length)

    @property
    def vocab_size(self) -> int:
        """The vocabulary drafted from; None: whatever ids the prompts hold."""
        return self.model.vocab_size

    @property
    def offers(self) -> Offers:
        """What it declares."""
        if self.tree is not None:
            return tree_offers(self.tree, laws=self.temperature != 0)
        return chain_offers(self.length, laws=self.temperature != 0)

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        """Return a session for a run."""
        check_vocabulary(f"draft {self.name!r}", self.model.vocab_size, self.model.tokenizer, oracle)
        if self.tree is not None:
            model = DraftModel(self.model, num_rows, capacity, oracle.device, slack=self.tree.max_scored)
            return _TreeSession(model, TreeSampler(self.tree, self.temperature, oracle.device))
        sampler = ChainSampler(self.length.open(num_rows), self.temperature, oracle.device)
        return _ChainSession(DraftModel(self.model, num_rows, capacity, oracle.device), sampler)


class _Session(DraftSession):
    def __init__(self, model: DraftModel) -> None:
        self.model = model

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        self.model.begin(rows, prompts)

    def end(self, rows: IntArray) -> None:
        self.model.end(rows)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        self.model.sync(rows, keep, new_ids)


class _TreeSession(_Session):
    def __init__(self, model: DraftModel, sampler: TreeSampler) -> None:
        super().__init__(model)
        self.sampler = sampler

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:

        def next_logits(frontier: Frontier) -> Tensor:
            if not frontier.tokens.shape[1]:
                return self.model.catch_up(rows, context, frontier.live)
            return self.model.grow(rows, frontier)

        room = self.model.room(context.num_committed)
        return self.sampler(context, budget, room, randomness, next_logits, self.model.grower(rows, context))


class _ChainSession(_Session):
    def __init__(self, model: DraftModel, sampler: ChainSampler) -> None:
        super().__init__(model)
        self.sampler = sampler

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        self.sampler.length.begin(rows)
        super().begin(rows, prompts, scores)

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        self.model.read_back()

        def next_logits(depth: int, tokens: Tensor, live: IntArray) -> Tensor:
            if depth == 0:
                return self.model.catch_up(rows, context, live)
            return self.model.advance(rows, tokens[:, depth - 1 : depth], live)

        limits = depth_limits(self.sampler.length, rows, context.num_committed, budget)
        limits = np.minimum(limits, self.model.room(context.num_committed))
        follow = self.model.follower(context)
        draft = self.sampler(rows, context, limits, randomness, next_logits, follow)
        self.model.note(rows, context.num_committed, draft)
        return draft
