"""A drafting model at work: its cache, the ids whose keys it holds, catch-up and rollback."""

from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from specdec.cache import CHUNK, FreshRows, prefill
from specdec.contracts import (
    ChainingOracle,
    ChainWatch,
    Context,
    DeviceChainingOracle,
    Draft,
    DraftPrefixes,
    Draws,
    IntArray,
    Needs,
    Oracle,
    PromptRows,
    Scores,
    TreePlan,
    Want,
    WholeDrafts,
    can_chain_on_device,
    can_draft_natively,
    check_has_laws,
    ids_device,
)
from specdec.drafting.chain_sampler import Follow, FollowOnDevice
from specdec.drafting.model_source import RunModel
from specdec.drafting.planned_trees import GrowWhole
from specdec.drafting.tree_sampler import Frontier
from specdec.laws import scatter_rows, take
from specdec.transfers import HOST, PendingDownload, on_device


class DraftModel(RunModel):
    """Keep a model's cache in step with the ids that stand in each row, whatever was drafted in between.

    The cache holds keys of the first ``cache.lengths`` of ``ids``; what follows in ``ids`` is stale. Drafted ids are
    kept where they were drawn, and come to the host with what the verdict brings there.

    Args:
        model: any object with the oracle contract.
        num_rows: slots of the run.
        capacity: ids a row may hold; the model's own context may be shorter.
        device: where logits are handed back.
        slack: slots beyond ``capacity`` for nodes that are scored and never committed (trees).

    Raises:
        ValueError: the model is recorded text.

    Attributes:
        capacity: ids a row may hold here.
        cache: the model's.
    """

    def __init__(self, model: Oracle, num_rows: int, capacity: int, device: torch.device, slack: int = 0) -> None:
        check_has_laws(model, "a draft")
        self.model, self.device = model, device
        self._chaining = cast(ChainingOracle, model) if model.chains else None
        self.capacity = min(capacity, model.max_context)
        self._rows: PromptRows = FreshRows(model.new_cache(num_rows, self.capacity + slack))
        self.cache, self._slack = self._rows.cache, slack
        self._place = ids_device(model)
        self._at_once = min(2 + slack, CHUNK)  # ids a row may be behind for one pass to catch up
        self.ids = np.zeros((num_rows, self.capacity + 1), dtype=np.int64)  # the last column: for what stands beyond
        # Rows, first columns, tokens.
        self._unread: tuple[IntArray, IntArray, PendingDownload] | None = None

    def share(self, prefixes: DraftPrefixes) -> None:
        """Read only what is new in prompts; see ``DraftSession.share``."""
        rows = prefixes.rows_of(self.model, self.cache.num_rows, self.capacity + self._slack)
        if rows is not None:
            self._rows, self.cache = rows, rows.cache

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None = None) -> None:
        """Take in new requests; arguments as in ``DraftSession.begin``. Cost: the prompts' passes, in chunks."""
        self.prefill(rows, prompts, None)

    def prefill(self, rows: IntArray, prompts: Sequence[IntArray], needs: Needs | None) -> Scores | None:
        """Take in new requests, and return the scores of prompts that are needed.

        Args:
            rows: ``[B]`` slots.
            prompts: ids ``[L]`` of each row; those beyond the capacity are not read.
            needs: which scores are returned; None: none.

        Returns:
            The scores, see ``specdec.cache.prefill``.

        Cost: the prompts' passes, in chunks.
        """
        self.read_back()
        prompts = [prompt[: self.capacity] for prompt in prompts]
        read = [prompt[:-1] for prompt in prompts]
        are_scored = needs is not None and needs.reads_prompts
        self._rows.begin(rows, [text[:0] for text in read] if are_scored else read)
        scores, _ = prefill(self.model, self.cache, rows, prompts, needs)
        self._rows.keep(rows, read)
        for row, prompt in zip(rows, prompts, strict=True):
            self.ids[row, : len(prompt)] = prompt
        return scores

    def end(self, rows: IntArray) -> None:
        """Forget finished requests; see ``DraftSession.end``."""
        texts = [self.ids[row, :length] for row, length in zip(rows, self.cache.lengths[rows], strict=True)]
        self._rows.end(rows, texts)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None = None) -> None:
        """Keep the keys of the ids that stand; arguments as in ``DraftSession.sync``. Cost: see ``read_back``."""
        if self._unread is not None:
            self.read_back()
        agrees = self.ids[self._places(rows, keep, new_ids.shape[1])] == new_ids
        stands = keep + np.logical_and.accumulate(agrees, axis=1).sum(1)
        self.cache.truncate(rows, np.minimum(stands, self.cache.lengths[rows]))

    def _places(self, rows: IntArray, starts: IntArray, width: int) -> tuple[IntArray, IntArray]:
        """Return the places in ``ids`` of ``width`` ids, the first of which come after ``starts[b]`` others."""
        return rows[:, None], np.minimum(starts[:, None] + np.arange(width), self.capacity)

    def room(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        """Return ``[B]`` how many tokens a row may draft before the model's own context is full."""
        # One slot stays free: a row that is one token behind is padded to the width of one that is two behind.
        return np.maximum(self.capacity - num_committed, 0)

    def _scatter(self, scores: Scores, live: IntArray, batch: int) -> Tensor:
        """Return the logits ``[B, M, V]`` of all rows, zero for a row that took no part in the pass."""
        assert scores.logits is not None
        return scatter_rows(on_device(scores.logits.detach(), self.device), live, batch)

    def catch_up(self, rows: IntArray, context: Context, live: IntArray, depth: int = 1) -> Tensor:
        """Score the ids that stand and have no keys yet; the last of them is the pending token.

        After full acceptance of a chain these are two: the last drafted token was never fed to the model. After a tree,
        of which nothing is kept, they are what was emitted; one pass takes them all.

        Args:
            rows: ``[B]``.
            context: of those rows.
            live: ``[R]`` indices into them of the rows that take part.
            depth: not read.

        Returns:
            ``[B, 1, V]`` logits of the token after the pending one, zero for a row that took no part.

        Cost: one pass; more, of up to ``CHUNK`` tokens each, for rows that are far behind.
        """
        scores = self._catch_up(rows[live], context.ids[live], context.num_committed[live])
        return self._scatter(scores, live, len(rows))

    def follower(self, context: Context) -> Follow | None:
        """Return ``follow`` if the model follows its ids by itself in the rows of a context, else None."""
        return self.follow if can_draft_natively(self.model, context.warping) else None

    def follow(
        self, rows: IntArray, context: Context, limits: IntArray, watch: ChainWatch | None, draws: Draws | None
    ) -> WholeDrafts:
        """Catch up, and follow the likeliest ids of rows ``[B]``, or drawn ones, in one call; see ``ChainingOracle``.

        Cost: one call, of as many passes as the longest row wants ids; laws take O(B N V) memory.
        """
        assert self._chaining is not None
        ends, ids = context.num_committed, context.ids
        if 0 not in limits.tolist():
            self.come_near(rows, ids, ends)
        else:
            live = np.flatnonzero(limits)
            self.come_near(rows[live], ids[live], ends[live])
            ends = np.where(limits > 0, ends, self.cache.lengths[rows])
        self._remember(rows, ids, ends)
        call = ids, ends, self.cache, rows, limits
        return self._chaining.follow_ids(*call, watch, draws, context.warping.adjustments)

    def device_follower(self, context: Context) -> FollowOnDevice | None:
        """Return ``follow_on_device`` if the model can do that in the rows of a context, else None."""
        return self.follow_on_device if can_chain_on_device(self.model, context.warping) else None

    def follow_on_device(self, rows: IntArray, context: Context, limits: IntArray) -> Draft:
        """Catch up, and have the device follow the likeliest ids of rows that draft.

        Args:
            rows: ``[B]`` slots, all of which draft.
            context: of those rows.
            limits: ``[B]`` tokens to draft, 1 or more.

        Returns:
            Chains ``[B, N]`` on the model's device; see ``DeviceChainingOracle.device_chains``.

        Cost: one call, and the passes of ``catch_up`` for rows that are far behind.
        """
        model, ids, ends = cast(DeviceChainingOracle, self.model), context.ids, context.num_committed
        self.come_near(rows, ids, ends)
        tokens, counts = self._unscored_ids(rows, ids, ends)
        draft = model.device_chains(tokens, counts, self.cache, rows, limits)
        self.cache.commit(rows, None, counts + limits - 1)
        return draft

    def grower(self, rows: IntArray, context: Context) -> GrowWhole | None:
        """Return what drafts whole trees for rows ``[B]`` if the model does that by itself, else None."""
        return partial(self.grow_whole, rows, context) if can_draft_natively(self.model, context.warping) else None

    def grow_whole(
        self, rows: IntArray, context: Context, live: IntArray, plan: TreePlan, limits: IntArray, draws: Draws
    ) -> WholeDrafts:
        """Catch up, and draft trees that are known beforehand, in one call; nothing of them is committed.

        Args:
            rows: ``[B]``.
            context: of those rows.
            live: ``[R]`` indices into them of the rows that take part.
            plan, limits, draws: of these, see ``ChainingOracle.trees``.

        Returns:
            Their ids ``[R, N]``, peaks ``[R, I]`` and laws ``[R I, V]``, see there.
        """
        assert self._chaining is not None
        warping, ids, ends = context.warping, context.ids, context.num_committed
        if live.size < len(rows):
            warping, rows, ids, ends = warping.select(live), rows[live], ids[live], ends[live]
        adjusted = () if warping.adjustments is None else (warping.adjustments,)
        self.come_near(rows, ids, ends)
        self._remember(rows, ids, ends)
        return self._chaining.trees(ids, ends, self.cache, rows, plan, limits, draws, *adjusted)

    def _catch_up(self, rows: IntArray, ids: IntArray, ends: IntArray) -> Scores:
        self.come_near(rows, ids, ends)
        return self._feed(rows, ids, ends, "last")

    def come_near(self, rows: IntArray, ids: IntArray, ends: IntArray) -> None:
        """Score ids that stand, until one pass is enough for the rest, the pending token included.

        Args:
            rows: ``[B]`` slots.
            ids: ``[B, L]`` of those rows; columns from ``ends[b]`` on are not read.
            ends: ``[B]`` how many of them stand.

        Cost: a pass of up to ``CHUNK`` tokens each, as long as a row is that far behind; none otherwise.
        """
        if self._unread is not None:
            self.read_back()
        unread = (ends - self.cache.lengths[rows]).tolist()
        if not unread or 1 <= min(unread) <= max(unread) <= self._at_once:
            return
        # A row cut back to what was cached has keys for its pending token too: they are made again, with logits.
        self.cache.truncate(rows, np.minimum(self.cache.lengths[rows], ends - 1))
        while np.count_nonzero(is_far := self.cache.lengths[rows] < ends - self._at_once):
            behind = np.flatnonzero(is_far)
            some = rows[behind]
            room = int((self.capacity - self.cache.lengths[some]).min())
            stops = np.minimum(self.cache.lengths[some] + min(CHUNK, room), ends[behind] - self._at_once)
            self._feed(some, ids[behind], stops, "none")

    def _remember(self, rows: IntArray, ids: IntArray, ends: IntArray) -> None:
        """Note that the ids ``ids[b, lengths[b] : ends[b]]`` of each row are about to be scored."""
        # What else these columns hold of a row is known already, or stale in any case.
        columns = slice(min(self.cache.lengths[rows].tolist()), max(ends.tolist(), default=0))
        self.ids[rows, columns] = ids[:, columns]

    def _feed(self, rows: IntArray, ids: IntArray, stops: IntArray, want: Want) -> Scores:
        """Score ``ids[b, lengths[b] : stops[b]]`` of each row and keep their keys."""
        tokens, counts = self._unscored_ids(rows, ids, stops)
        return self._score(torch.from_numpy(tokens), counts, rows, want)

    def _unscored_ids(self, rows: IntArray, ids: IntArray, stops: IntArray) -> tuple[IntArray, IntArray]:
        """Return ``ids[b, lengths[b] : stops[b]]`` of each row, padded, and how many: they are about to be scored."""
        first = self.cache.lengths[rows]
        counts = stops - first
        sizes = counts.tolist()
        columns = first[:, None] + np.arange(max(sizes, default=0))
        if len(set(sizes)) > 1:
            # For a row that reads nothing this is its last id that has a key.
            columns = np.minimum(columns, stops[:, None] - 1)
        tokens = ids[np.arange(len(rows))[:, None], columns]
        self.ids[rows[:, None], columns] = tokens
        return tokens, counts

    def advance(self, rows: IntArray, tokens: Tensor, live: IntArray) -> Tensor:
        """Score the token drafted last, ``[B, 1]``, of the rows that draft on; arguments as in ``catch_up``.

        Returns:
            ``[B, 1, V]`` logits of the token after it, zero for a row that took no part.

        Cost: one pass of one token a row.
        """
        some, tokens = rows[live], take(tokens, live)
        return self._scatter(self._score(tokens, np.ones_like(some), some, "last"), live, len(rows))

    def grow(self, rows: IntArray, frontier: Frontier) -> Tensor:
        """Score the nodes of a tree that come after those scored since ``catch_up``; nothing of them is committed.

        Returns:
            ``[B, frontier.size, V]`` logits, zero for a row that took no part.

        Cost: one pass of ``frontier.size`` nodes a row.
        """
        batch, live, device = len(rows), frontier.live, self.model.device
        tokens, parents = take(on_device(frontier.tokens, device), live), self._to_model(frontier.parents[live])
        rows = rows[live]
        nodes = torch.full((len(rows),), tokens.shape[1], device=device)
        scores = self.model.score(tokens, parents, nodes, self.cache, rows, "all", (), frontier.first)
        return self._scatter(scores, live, batch)

    def _score(self, tokens: Tensor, counts: IntArray, rows: IntArray, want: Want) -> Scores:
        scores = self.model.score(self._to_model(tokens), None, self._to_model(counts), self.cache, rows, want)
        self.cache.commit(rows, None, counts)
        return scores

    def _to_model(self, values: Tensor | IntArray) -> Tensor:
        """Return ids, parents or counts where the model takes them."""
        if self._place == HOST:
            return values if isinstance(values, Tensor) else torch.from_numpy(values)
        return on_device(values, self.model.device)

    def note(self, rows: IntArray, starts: IntArray, draft: Draft) -> None:
        """Remember chains; trees left nothing to keep. Arguments as in ``RunModel.note``."""
        if draft.parents is not None:
            return
        if draft.tokens.is_cpu:
            self.ids[self._places(rows, starts, draft.tokens.shape[1])] = draft.tokens.numpy()
        else:
            self._unread = rows, starts, PendingDownload(draft.tokens)

    def read_back(self) -> None:
        """Write the drafted ids that were noted into ``ids``. Cost: a wait, if the host has brought nothing since."""
        if self._unread is None:
            return
        rows, starts, tokens = self._unread
        self._unread = None
        self.ids[self._places(rows, starts, tokens.values.shape[1])] = tokens.on_host()
