"""Draft with a smaller language model, decoded autoregressively on its own cache."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from specdec.contracts import Budget, Context, Draft, IntArray, Needs, Offers, Oracle, Randomness, Scores
from specdec.draft_length import LengthPolicy, chain_offers, depth_limits, resolve
from specdec.draft_model import DraftModel
from specdec.drafting import ChainSampler, check_vocabulary


class SmallTransformer:
    """Draft a chain of tokens sampled from a model that is cheaper than the oracle.

    Args:
        model: any object with the oracle contract (a transformer, a table, a quantised view, ...). Its true vocabulary
            must be the oracle's.
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default 5.
        length: a length policy.
        temperature: of the drafts; None follows each request, 0 drafts greedily. The request's other warping (top_p,
            penalties along the drafted path, ...) applies either way.

    Raises:
        ValueError: an argument out of range; in ``open``, another vocabulary than the oracle's, with the reason.

    Guarantee: the declared law of a node is the one its token was drawn from; greedy tokens are point masses. Lossless
        under every lossless rule. A row whose context fills the model's own drafts less and then nothing; rows with a
        spent budget take part in no pass.
    Cost: one pass of one or two tokens a row to catch up, then one pass a further token; a cache of the model's own for
        all rows. Confidences (a gather where drawn, a softmax where greedy) and
        entropies only where ``length`` reads them.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318).
    """

    name = "small_transformer"
    needs = Needs()

    def __init__(
        self,
        model: Oracle,
        num_draft_tokens: int | None = None,
        length: LengthPolicy | None = None,
        temperature: float | None = None,
    ) -> None:
        if temperature is not None and not 0 <= temperature < np.inf:
            raise ValueError(f"temperature must be finite and 0 or more, or None (the request's), not {temperature}")
        self.model, self.temperature = model, temperature
        self.length = resolve(num_draft_tokens, length, default=5)

    @property
    def vocab_size(self) -> int:
        """See ``DraftSource``."""
        return self.model.vocab_size

    @property
    def offers(self) -> Offers:
        """See ``DraftSource``."""
        return chain_offers(self.length, laws=self.temperature != 0)

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> "_Session":
        """See ``DraftSource``."""
        check_vocabulary(f"draft {self.name!r}", self.model.vocab_size, self.model.tokenizer, oracle)
        sampler = ChainSampler(self.length, self.length.open(num_rows), self.temperature, oracle.device)
        return _Session(DraftModel(self.model, num_rows, capacity, oracle.device), sampler)


class _Session:
    def __init__(self, model: DraftModel, sampler: ChainSampler) -> None:
        self.model, self.sampler = model, sampler

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """See ``DraftSession``."""
        self.sampler.length.begin(rows)
        self.model.begin(rows, prompts)

    def end(self, rows: IntArray) -> None:
        """See ``DraftSession``."""
        self.model.end(rows)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        """See ``DraftSession``."""
        self.model.sync(rows, keep, new_ids)

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """See ``DraftSession``."""
        self.model.read_back()

        def next_logits(depth: int, tokens: Tensor, live: IntArray) -> Tensor:
            if depth == 0:
                return self.model.catch_up(rows, context, live)
            return self.model.advance(rows, tokens[:, depth - 1 : depth], live)

        limits = depth_limits(self.sampler.length, rows, context.num_committed, budget)
        limits = np.minimum(limits, self.model.room(context.num_committed))
        draft, counts = self.sampler(rows, context, limits, randomness, next_logits)
        self.model.note(rows, context.num_committed, counts, draft.tokens)
        return draft
