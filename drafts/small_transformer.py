"""Draft with a smaller language model, decoded autoregressively on its own cache."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import Budget, Context, Draft, IntArray, Needs, Offers, Oracle, Randomness, Scores, Want
from specdec.draft_length import LengthPolicy, depth_limits, resolve
from specdec.drafting import ChainSampler, check_vocabulary
from specdec.prefill import CHUNK, prefill


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
        all rows. Confidences (a gather where drawn, a softmax where greedy) only where ``length`` reads them.
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
        depth = self.length.max_depth
        return Offers(
            laws=self.temperature != 0, confidence=self.length.reads_confidence, max_depth=depth, max_nodes=depth
        )

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> "_Session":
        """See ``DraftSource``."""
        check_vocabulary(f"draft {self.name!r}", self.model.vocab_size, self.model.tokenizer, oracle)
        sampler = ChainSampler(self.length, self.length.open(num_rows), self.temperature, oracle.device)
        return _Session(self.model, sampler, num_rows, capacity)


class _Session:
    """The model's cache and the ids whose keys it holds: the first ``cache.lengths`` of ``ids``, what follows is stale.

    Drafted ids are kept where they were drawn and read back in the next call only, when the engine has waited for the
    device anyway.
    """

    def __init__(self, model: Oracle, sampler: ChainSampler, num_rows: int, capacity: int) -> None:
        self.model, self.sampler, self.device = model, sampler, sampler.device
        self.capacity = min(capacity, self.model.max_context)
        self.cache = self.model.new_cache(num_rows, self.capacity)
        self.ids = np.zeros((num_rows, self.capacity), dtype=np.int64)
        self.unread: tuple[IntArray, IntArray, IntArray, Tensor] | None = None  # rows, first columns, counts, tokens

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """See ``DraftSession``. Cost: the prompts without their last tokens, in chunks."""
        self._read_back()
        self.sampler.length.begin(rows)
        self.cache.reset(rows)
        prompts = [prompt[: self.capacity] for prompt in prompts]
        prefill(self.model, self.cache, rows, prompts)
        for row, prompt in zip(rows, prompts, strict=True):
            self.ids[row, : len(prompt)] = prompt

    def end(self, rows: IntArray) -> None:
        """See ``DraftSession``."""
        self.cache.truncate(rows, np.zeros_like(rows))

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        """See ``DraftSession``: keep the keys of the ids that stand."""
        self._read_back()
        columns = keep[:, None] + np.arange(new_ids.shape[1])
        own = self.ids[rows[:, None], np.minimum(columns, self.capacity - 1)]
        stands = keep + np.logical_and.accumulate(own == new_ids, axis=1).sum(1)
        self.cache.truncate(rows, np.minimum(stands, self.cache.lengths[rows]))

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """See ``DraftSession``."""
        self._read_back()

        def next_logits(depth: int, tokens: Tensor, live: IntArray) -> Tensor:
            if depth == 0:
                return self._spread(self._catch_up(rows, context, live), live, len(rows))
            return self._spread(self._advance(rows, tokens[:, depth - 1 : depth], live), live, len(rows))

        limits = self._limits(rows, context, budget)
        draft, counts = self.sampler(rows, context, limits, randomness, next_logits)
        self.unread = (rows, context.num_committed, counts, draft.tokens)
        return draft

    def _limits(self, rows: IntArray, context: Context, budget: Budget) -> IntArray:
        """Return ``[B]`` how many tokens each row drafts at most."""
        limits = depth_limits(self.sampler.length, rows, context.num_committed, budget)
        # One slot stays free: a row that is one token behind is padded to the width of one that is two behind.
        return np.minimum(limits, np.maximum(self.capacity - context.num_committed, 0))

    def _spread(self, scores: Scores, live: IntArray, batch: int) -> Tensor:
        """Return the last logits ``[B, 1, V]`` of all rows, zero where a row took no part in the pass."""
        assert scores.logits is not None
        logits = scores.logits.to(self.device)
        if live.size == batch:
            return logits
        spread = logits.new_zeros(batch, *logits.shape[1:])
        spread[torch.from_numpy(live).to(self.device)] = logits
        return spread

    def _catch_up(self, rows: IntArray, context: Context, live: IntArray) -> Scores:
        """Score the ids that stand and have no keys yet; the last of them is the pending token.

        After full acceptance these are two: the last drafted token was never fed to the model.
        """
        rows, ids, ends = rows[live], context.ids[live], context.num_committed[live]
        # A row cut back to what was cached has keys for its pending token too: they are made again, with its logits.
        self.cache.truncate(rows, np.minimum(self.cache.lengths[rows], ends - 1))
        while (behind := np.flatnonzero(self.cache.lengths[rows] < ends - 2)).size:
            some = rows[behind]
            room = int((self.capacity - self.cache.lengths[some]).min())
            stops = np.minimum(self.cache.lengths[some] + min(CHUNK, room), ends[behind] - 2)
            self._feed(some, ids[behind], stops, "none")
        return self._feed(rows, ids, ends, "last")

    def _feed(self, rows: IntArray, ids: IntArray, stops: IntArray, want: Want) -> Scores:
        """Score ``ids[b, lengths[b] : stops[b]]`` of each row and keep their keys."""
        first = self.cache.lengths[rows]
        counts = stops - first
        columns = first[:, None] + np.arange(counts.max())
        is_real = columns < stops[:, None]
        tokens = np.where(is_real, np.take_along_axis(ids, np.minimum(columns, ids.shape[1] - 1), axis=1), 0)
        self.ids[np.broadcast_to(rows[:, None], columns.shape)[is_real], columns[is_real]] = tokens[is_real]
        return self._score(torch.from_numpy(tokens), counts, rows, want)

    def _advance(self, rows: IntArray, tokens: Tensor, live: IntArray) -> Scores:
        """Score the token drafted last, ``[B, 1]``, of the rows that draft on."""
        if live.size < len(rows):
            tokens, rows = tokens[torch.from_numpy(live).to(self.device)], rows[live]
        return self._score(tokens, np.ones_like(rows), rows, "last")

    def _score(self, tokens: Tensor, counts: IntArray, rows: IntArray, want: Want) -> Scores:
        device = self.model.device
        scores = self.model.score(tokens.to(device), None, torch.from_numpy(counts).to(device), self.cache, rows, want)
        self.cache.commit(rows, None, counts)
        return scores

    def _read_back(self) -> None:
        """Note the drafted ids."""
        if self.unread is None:
            return
        rows, starts, counts, tokens = self.unread
        self.unread = None
        order = np.arange(tokens.shape[1])
        drafted, columns = order < counts[:, None], starts[:, None] + order
        at_rows = np.broadcast_to(rows[:, None], columns.shape)
        self.ids[at_rows[drafted], columns[drafted]] = tokens.cpu().numpy()[drafted]
