"""Chains, drawn token by token, and how sure a model is of a token."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import (
    ChainWatch,
    Context,
    Draft,
    DraftKernels,
    Draws,
    FloatArray,
    IntArray,
    Randomness,
    WholeDrafts,
    first_undefined,
)
from specdec.drafting.lengths import LengthSession, cut_limits
from specdec.laws import Laws, scatter_rows
from specdec.transfers import on_device, on_host, stage


def confidence_of(laws: Laws, logits: Tensor, tokens: Tensor, kernels: DraftKernels) -> Tensor:
    """Return the probability of tokens: under their law, or the model's own if that is a point mass.

    Args:
        laws: shape ``S``.
        logits: ``S + [V]`` of the model, not warped.
        tokens: ``S``.
        kernels: compute the softmax of a model's own law.

    Returns:
        ``S`` float64; NaN for a point mass if logits hold NaN or +inf.

    Guarantee: on the CPU, with native kernels, the bits are those that a ``ChainWatch`` is told.
    Cost: a gather, and O(V) for each logit row unless all laws are known to be no point masses.
    """
    drawn = laws.probs_of(tokens)
    if laws.has_no_points:
        return drawn
    return torch.where(laws.index < 0, kernels.softmax(logits).gather(-1, tokens.unsqueeze(-1)).squeeze(-1), drawn)


def entropy_of(laws: Laws, logits: Tensor, kernels: DraftKernels) -> Tensor:
    """Return the entropy in nats of laws, or of the model's own if they are point masses: float64 of the laws' shape.

    Args:
        laws: shape ``S``.
        logits: ``S + [V]`` of the model, not warped.
        kernels: compute the model's own law, and entropies; see ``confidence_of``.

    Cost: O(V) a law.
    """
    if laws.has_no_points:
        return kernels.entropies(laws.table)[laws.index]
    unwarped = kernels.entropies(kernels.softmax(logits))
    if laws.all_points:
        return unwarped
    return torch.where(laws.index < 0, unwarped, kernels.entropies(laws.table)[laws.index.clamp(min=0)])


NextLogits = Callable[[int, Tensor, IntArray], Tensor]
Confidence = Callable[[], Tensor]
Follow = Callable[[IntArray, Context, IntArray, ChainWatch | None, Draws | None], WholeDrafts]
FollowOnDevice = Callable[[IntArray, Context, IntArray], Draft]


class _LengthInquiry(ChainWatch):
    """Ask a length policy between the tokens of chains.

    Args:
        length: its session.
        rows: ``[B]`` slots.
        limits: ``[B]`` tokens that each may draft at most.

    Attributes:
        limits: ``[B]`` what is left of them.
        confidence: ``[B, N]`` of the tokens drafted, as far as the policy was asked; None if it reads none.
    """

    def __init__(self, length: LengthSession, rows: IntArray, limits: IntArray) -> None:
        self.length, self.rows, self.limits = length, rows, limits
        self.reads_entropy, self.reads_confidence = length.policy.reads_entropy, length.policy.reads_confidence
        self.confidence: FloatArray | None = np.zeros((len(rows), 0)) if self.reads_confidence else None

    def before(self, depth: int, entropy: FloatArray) -> None:
        self.limits = cut_limits(self.length, self.limits, depth, self.length.draws(self.rows, entropy))

    def after(self, depth: int, confidence: FloatArray) -> None:
        self.confidence = confidence
        self.limits = cut_limits(self.length, self.limits, depth + 1, self.length.continues(self.rows, confidence))


@dataclass(frozen=True)
class ChainSampler:
    """Draw chains token by token from laws warped as the requests ask.

    Args:
        length: the session of a length policy, which tells whether confidences and entropies are read.
        temperature: replaces the requests' own; 0 drafts greedily, None follows them.
        device: where drafts are put.
    """

    length: LengthSession
    temperature: float | None
    device: torch.device

    def __call__(
        self,
        rows: IntArray,
        context: Context,
        limits: IntArray,
        randomness: Randomness,
        next_logits: NextLogits,
        follow: Follow | None = None,
        follow_on_device: FollowOnDevice | None = None,
        confidence: Confidence | None = None,
    ) -> Draft:
        """Return chains of at most ``limits`` ``[B]`` tokens.

        Args:
            rows: ``[B]`` slots.
            context: of those rows.
            limits: ``[B]``.
            randomness: of those rows; node i is drawn with ``node=i, depth=i, purpose="draft"``.
            next_logits: given the depth, the tokens so far ``[B, N]`` (columns from the depth on are undefined) and the
                indices of the rows that draft on, returns logits ``[B, 1, V]``, finite or -inf; those of other rows are
                not read.
            follow: given rows, context, limits, a watch (None: nobody is asked) and how ids are drawn (None:
                greedily), returns what ``ChainingOracle.follow_ids`` does; None if the model cannot. It serves if all
                rows draft greedily or all are sampled, and the numbers of the draws are available.
            follow_on_device: given rows that draft, their context and limits, returns their greedy chains, which the
                model's device has made; None if it cannot. It serves if all rows draft greedily and the policy reads
                nothing.
            confidence: returns ``[B, 1]`` the model's own belief that the token after the latest logits stands if all
                before it do; None: a token is believed in as much as it is probable. ``follow`` does not serve a
                policy that reads it.

        Guarantee: the declared laws are those drawn from; rows at their limit draw nothing. A token is never dropped
            once drawn: a policy ends a chain after it, or before the draw by its law alone.
        Cost: one call of ``follow`` or ``follow_on_device`` if that serves. Else per depth one call of ``next_logits``,
            one warping and one draw of ``[B, V]``. A policy that reads confidences or entropies is asked on the host at
            each depth, which waits for the device.
        """
        if confidence is not None and self.length.policy.reads_confidence:
            follow = None
        if follow is not None and context.warping.kernels.are_compiled and any(limits.tolist()):
            made = self._draft_natively(rows, context, limits, randomness, follow)
            if made is not None:
                return made
        if follow_on_device is not None and self._is_forced(context) and any(limits.tolist()):
            live = np.flatnonzero(limits)
            some = context if live.size == len(rows) else context.select(live)
            made = follow_on_device(rows[live], some, limits[live]).scatter_rows(live, len(rows))
            self.length.note_counts(rows, limits)
            return made.to(self.device)
        with stage(chain((limits,), randomness.numbers()), self.device):
            return self._draft_stepwise(rows, context, limits, randomness, next_logits, confidence)

    def _is_forced(self, context: Context) -> bool:
        """Tell whether the likeliest ids are drafted in all rows, and no policy is asked."""
        return not self._asks and context.warping.is_greedy(self.temperature)

    def _draft_natively(
        self, rows: IntArray, context: Context, limits: IntArray, randomness: Randomness, follow: Follow
    ) -> Draft | None:
        """Return chains that the model drafts by itself; None if that takes more than numbers known beforehand."""
        draws = None
        if not context.warping.is_greedy(self.temperature):
            filters = context.warping.filters(self.temperature)
            keys = None if filters is None else randomness.chain_keys("draft")
            if filters is None or keys is None:
                return None
            draws = Draws(filters, keys)
        asked = _LengthInquiry(self.length, rows, limits) if self._asks else None
        ids, peaks, table = follow(rows, context, limits, asked, draws)
        limits = limits if asked is None else asked.limits
        self.length.note_counts(rows, limits)
        width = ids.shape[1]
        laws = None if table is None or not width else Laws.from_probs(torch.from_numpy(table))
        if laws is not None and min(limits.tolist()) < width:
            laws = laws.with_points(torch.from_numpy(np.arange(width) >= limits[:, None]))
        made = Draft(
            torch.from_numpy(np.ascontiguousarray(ids)),
            torch.from_numpy(limits),
            laws=laws,
            confidence=None if asked is None or asked.confidence is None else torch.from_numpy(asked.confidence),
            undefined=None if np.isfinite(peaks).all() else first_undefined([torch.from_numpy(peaks)]),
            is_native=True,
        )
        return made.to(self.device)

    @cached_property
    def _asks(self) -> bool:
        """Whether the policy is asked between tokens."""
        return self.length.policy.reads_entropy or self.length.policy.reads_confidence

    def _draft_stepwise(
        self,
        rows: IntArray,
        context: Context,
        limits: IntArray,
        randomness: Randomness,
        next_logits: NextLogits,
        own: Confidence | None,
    ) -> Draft:
        """Return chains that are drawn token by token."""
        asked = _LengthInquiry(self.length, rows, limits)
        shape = len(asked.rows), int(limits.max(initial=0))
        tokens = torch.zeros(shape, dtype=torch.int64, device=self.device)
        confidence = torch.zeros(shape, dtype=torch.float64, device=self.device)
        laws: list[Laws] = []
        drew: list[IntArray] = []
        peaks = [torch.zeros(shape[0], 0, device=self.device)]
        while (live := np.flatnonzero(asked.limits > len(laws))).size:
            i = len(laws)
            logits = next_logits(i, tokens, live)
            so_far = Draft(tokens, on_device(limits, self.device))
            law, peak = self._laws(context, logits, so_far, i, live)
            peaks.append(peak)
            if asked.reads_entropy:
                asked.before(i, on_host(_zero_but(entropy_of(law, logits, context.warping.kernels), live).squeeze(1)))
                live = np.flatnonzero(asked.limits > i)
                if not live.size:
                    break
            law = _idle_but(law, live)
            drawn = randomness.choose(law, node=i, depth=i, purpose="draft")
            tokens[:, i : i + 1] = drawn
            laws.append(law[:, 0])
            drew.append(live)
            if asked.reads_confidence:
                belief = confidence_of(law, logits, drawn, context.warping.kernels) if own is None else own()
                confidence[:, i : i + 1] = _zero_but(belief, live)
                asked.after(i, on_host(confidence[:, : i + 1]))
        made = None if all(law.all_points for law in laws) else Laws.stack(laws, dim=1)
        is_known = (drew and asked.limits is limits) or self.device.type == "cpu"
        num_nodes = on_device(asked.limits, self.device) if is_known else _lengths(drew, tokens)
        high = torch.cat(peaks, dim=1)
        # On another device the host does not wait to know whether they are finite.
        is_fine = not high.shape[1] or (high.is_cpu and bool(np.isfinite(on_host(high)).all()))
        self.length.note_counts(rows, asked.limits)
        beliefs = None if asked.confidence is None else confidence[:, : asked.confidence.shape[1]]
        undefined = None if is_fine else on_device(first_undefined([high]), self.device)
        return Draft(tokens[:, : len(laws)], num_nodes, laws=made, confidence=beliefs, undefined=undefined)

    def _laws(self, context: Context, logits: Tensor, draft: Draft, depth: int, live: IntArray) -> tuple[Laws, Tensor]:
        """Return ``[B, 1]`` the laws of the tokens at ``depth``, and the peaks of their logits, 0 in rows not asked."""
        node = torch.full((1,), depth, dtype=torch.int64, device=self.device)
        laws, peak = drawable_laws(context.warping.laws(logits, draft, node, self.temperature), logits)
        return laws, _zero_but(peak, live)


def _is_idle(rows: Tensor, live: IntArray) -> Tensor:
    """Return ``[B, 1]`` bool: which rows are not among those at ``live``."""
    busy = torch.zeros(len(live), 1, dtype=torch.bool, device=rows.device)
    return scatter_rows(busy, live, len(rows), fill=True)


def _lengths(drew: list[IntArray], rows: Tensor) -> Tensor:
    """Return ``[B]`` how often each of the rows drew, on their device: by slices, for which nothing is copied there."""
    counts = rows.new_zeros(len(rows))
    for live in drew:
        counts = counts + scatter_rows(rows.new_ones(len(live)), live, len(rows))
    return counts


def _zero_but(values: Tensor, live: IntArray) -> Tensor:
    """Return values ``[B, 1]`` with 0 in all rows but those at ``live``."""
    return values if live.size == len(values) else values.masked_fill(_is_idle(values, live), 0)


def _idle_but(laws: Laws, live: IntArray) -> Laws:
    """Return ``[B, 1]`` laws with a point mass in the rows that do not draw, all but those at ``live``."""
    if live.size == laws.shape[0]:
        return laws
    return laws.with_points(_is_idle(laws.index, live))


def drawable_laws(laws: Laws, logits: Tensor) -> tuple[Laws, Tensor]:
    """Return laws ``[B, M]`` that can be drawn from, and the peaks ``[B, M]`` of the logits that they were made of.

    A law becomes uniform if every id that the model would draft is banned (all logits -inf), or if the logits hold NaN
    or +inf. The peak tells the second case: it is the largest logit, or for a point mass that of its id. NaN and +inf
    are errors of the model; a source hands the peaks to ``first_undefined``, so that the engine reports them.

    Cost: O(B M V); no synchronisation.
    """
    if laws.all_points:
        return laws, logits.gather(-1, laws.point.unsqueeze(-1)).squeeze(-1)
    peaks = logits.amax(-1)
    # A law holds NaN everywhere or nowhere. On a device it would take a synchronisation to know.
    if laws.table.is_cpu and not math.isnan(laws.table[:, 0].detach().sum()):
        return laws, peaks
    undefined = laws.table[:, :1].isnan()
    table = torch.where(undefined, 1.0 / laws.table.shape[1], laws.table)
    return Laws(table, laws.index, laws.point), peaks
