"""Chains that grow by several tokens at a time, each with the law that it follows, and the siblings of their nodes."""

import itertools
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import NEVER, Context, Draft, FloatArray, IntArray, Randomness
from specdec.drafting.assembly import compact_nodes
from specdec.drafting.chain_sampler import confidence_of
from specdec.laws import Laws, excluding
from specdec.transfers import StagedValues, on_device, on_host, stage, together_on_device


class Trunk:
    """The chains of a batch while they grow, rows at their own pace.

    Args:
        context: of the rows; not changed.
        depth: the longest chain.
        num_others: how many likely ids to remember beside each token, 0 or more.
        keeps_confidence: remember how probable each token was.
        device: of the model's logits.

    Attributes:
        ids: ``[B, L + depth]`` the rows' ids, the trunk after those that stand.
        counts: ``[B]`` trunk tokens so far.
        undefined: ``[B]`` see ``Draft``.
    """

    def __init__(
        self, context: Context, depth: int, num_others: int, keeps_confidence: bool, device: torch.device
    ) -> None:
        batch = len(context.num_committed)
        self.starts, self.num_others, self.device = context.num_committed, num_others, device
        self._kernels = context.warping.kernels
        self.ids = np.pad(context.ids, ((0, 0), (0, depth)))
        self.counts = np.zeros(batch, dtype=np.int64)
        self.undefined = np.full(batch, NEVER, dtype=np.int64)
        self._index = torch.full((batch, depth), -1, dtype=torch.int64, device=device)
        self._others = torch.full((batch, depth, num_others), -1, dtype=torch.int64, device=device)
        self._tables: list[Tensor] = []
        # What rows grew by: ids and where each is (row and column in the laws, chain and depth in the trunk), laws, the
        # logits that gave them, and what brings the places along with the next copy to the device.
        self._coming: list[tuple[tuple[IntArray, ...], Laws, Tensor, StagedValues]] = []
        self._confidence = torch.zeros(batch, depth, dtype=torch.float64, device=device) if keeps_confidence else None

    def note_undefined(self, live: IntArray, behind: IntArray) -> None:
        """Remember how many tokens after the chain of each of the rows ``live`` ``[R]`` a model was undefined.

        Args:
            live: indices into the batch.
            behind: ``[R, S]``, a column for each model.
        """
        self.undefined[live] = np.minimum(self.undefined[live], self.counts[live] + behind.min(1))

    def append(self, live: IntArray, tokens: IntArray, counts: IntArray, laws: Laws, logits: Tensor) -> None:
        """Let the rows ``live`` ``[R]`` grow by ``counts[b]`` tokens.

        Args:
            live: indices into the batch.
            tokens: ``[R, M]``.
            counts: ``[R]``, 1..M.
            laws: ``[R, M]`` that the tokens follow.
            logits: ``[R, M, V]`` that gave the laws.

        Cost: O(V) per token for its row of the table.
        """
        row, at = np.nonzero(np.arange(tokens.shape[1]) < counts[:, None])
        chain, depth = live[row], self.counts[live][row] + at
        self.ids[chain, self.starts[chain] + depth] = tokens[row, at]
        self.counts[live] += counts
        places = (tokens[row, at], row, at, chain, depth)
        self._coming.append((places, laws, logits, stage(places, self.device)))

    def confidence(self) -> FloatArray:
        """Return ``[B, depth]`` the probabilities of the tokens, by the model's own law if a token is chosen.

        Cost: waits for the device.
        """
        assert self._confidence is not None
        self._take_in()
        values: FloatArray = on_host(self._confidence)
        return values

    def _take_in(self) -> None:
        """Take in what was appended. Nothing goes to the device for it if another copy went there since."""
        for given, laws, logits, _ in self._coming:
            own, *places = (on_device(part, self.device) for part in given)
            there, here = tuple(places[:2]), tuple(places[2:])
            if not laws.all_points:
                index = laws.index[there]
                total = sum(table.shape[0] for table in self._tables)
                self._index[here] = torch.where(index < 0, index, total + torch.arange(len(own), device=self.device))
                self._tables.append(laws.table[index.clamp(min=0)])
            if self.num_others:
                self._others[here] = _next_best(logits[there], own, self.num_others)
            if self._confidence is not None:
                self._confidence[here] = confidence_of(laws[there], logits[there], own, self._kernels)
        self._coming.clear()

    def draft(self) -> Draft:
        """Return the chains. Cost: O(B depth) and one copy of the laws' tables; no synchronisation."""
        width = int(self.counts.max(initial=0))
        columns = np.minimum(self.starts[:, None] + np.arange(width), self.ids.shape[1] - 1)
        is_real = np.arange(width) < self.counts[:, None]
        chains = np.where(is_real, np.take_along_axis(self.ids, columns, axis=1), 0)
        tokens, counts, undefined = together_on_device(chains, self.counts, self.undefined, device=self.device)
        self._take_in()
        confidence = None if self._confidence is None else self._confidence[:, :width]
        draft = Draft(tokens, counts, confidence=confidence, undefined=undefined.unsqueeze(1))
        if not self._tables:
            return draft
        laws = Laws(torch.cat(self._tables), self._index[:, :width], tokens)
        return replace(draft, laws=laws, decided=laws.index >= 0)

    def draft_branches(self, max_nodes: IntArray, randomness: Randomness) -> Draft:
        """Return the chains with ``num_others`` siblings beside each token, as far as ``max_nodes`` ``[B]`` goes.

        If a token is drawn, its siblings are drawn without replacement from what is left of its law, fewer if the law
        holds fewer ids. If it is chosen, they are the next best ids. A row takes siblings from the first token on, all
        of a token's or none. Confidences are left out: siblings have none.

        Cost: no pass; O(B depth V) to draw. On a device nobody looks how many siblings were drawn, and the draft is as
            wide as it can be.
        """
        full = np.minimum((max_nodes - self.counts) // self.num_others, self.counts)
        depths = np.arange(int(self.counts.max(initial=0)))
        with stage(itertools.chain((full, depths), randomness.numbers()), self.device):
            chain = self.draft()
            nodes = torch.arange(chain.width, device=self.device)
            wanted = nodes < on_device(full, self.device).unsqueeze(1)
            beside = _siblings(chain, wanted, self._others[:, : chain.width], depths, randomness)
        is_real = torch.cat([nodes < chain.num_nodes.unsqueeze(1), beside.tokens >= 0], dim=1)
        above = torch.cat([nodes - 1, (nodes - 1).repeat_interleave(self.num_others)]).expand(is_real.shape)
        most = int((self.counts + full * self.num_others).max(initial=0))
        order, parents, num_nodes = compact_nodes(is_real, above, most)
        return replace(Draft.of_nodes([chain, beside], order, parents, num_nodes), undefined=chain.undefined)


def _next_best(logits: Tensor, own: Tensor, count: int) -> Tensor:
    """Return the ``count`` likeliest ids ``[U, count]`` of logits ``[U, V]`` but for ``own`` ``[U]``; -1: none left."""
    best = logits.topk(min(count + 1, logits.shape[-1]), dim=-1).indices
    others = best.gather(1, (best == own.unsqueeze(1)).long().argsort(dim=1, stable=True))[:, : best.shape[1] - 1]
    # If the own id is not among the best, the last of them is one too many.
    return torch.nn.functional.pad(others[:, :count], (0, max(0, count - others.shape[1])), value=-1)


def _siblings(chain: Draft, wanted: Tensor, likeliest: Tensor, depths: IntArray, randomness: Randomness) -> Draft:
    """Return the siblings ``[B, K k]`` of trunk nodes, -1 if there is none; trunk node by trunk node.

    Args:
        chain: the trunk, ``[B, K]``.
        wanted: ``[B, K]`` bool.
        likeliest: ``[B, K, k]`` the siblings, if nothing is drawn.
        depths: ``[K]`` from 0 on.
        randomness: of the rows.
    """
    count = likeliest.shape[-1]
    if chain.laws is None:
        return Draft(likeliest.masked_fill(~wanted.unsqueeze(-1), -1).flatten(1), chain.num_nodes * count)
    own = chain.tokens.unsqueeze(-1)
    rest = excluding(chain.laws, own, torch.ones_like(own, dtype=torch.bool))
    # A law that holds only the trunk's id comes back as it was.
    drawable = wanted & (chain.laws.index >= 0) & (rest.probs_of(chain.tokens) == 0)
    laws = rest.with_points(~drawable)
    drawn = randomness.choose(laws, depths, depths, "draft", count)
    drawn = (drawn if count > 1 else drawn.unsqueeze(-1)).masked_fill(~drawable.unsqueeze(-1), -1)
    is_chosen = (wanted & (chain.laws.index < 0)).unsqueeze(-1)
    tokens = torch.where(is_chosen, likeliest, drawn).flatten(1)
    index = laws.index.repeat_interleave(count, dim=1)
    made = Laws(laws.table, index, tokens)
    return Draft(tokens, chain.num_nodes * count, laws=made, without_replacement=index >= 0)
