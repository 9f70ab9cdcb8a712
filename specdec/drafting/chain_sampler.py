"""Chains, drawn token by token or given."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import NEVER, ChainDraws, Context, Draft, IntArray, Randomness, Warping
from specdec.draft_length import LengthSession, ended
from specdec.laws import Laws

NextLogits = Callable[[int, Tensor, IntArray], Tensor]
Follow = Callable[[IntArray, Context, IntArray, ChainDraws | None], tuple[Tensor, Tensor, Laws | None]]


def point_chains(tokens: IntArray, counts: IntArray, device: torch.device, confidence: Tensor | None = None) -> Draft:
    """Return chains of deterministic tokens.

    Args:
        tokens: ``[B, N]``; columns from ``counts[b]`` on are padding and must hold valid ids.
        counts: ``[B]``, 0..N.
        device: where the draft is put.
        confidence: ``[B, N]``, or None.
    """
    width = int(counts.max(initial=0))
    return Draft(
        torch.from_numpy(tokens[:, :width]).to(device),
        torch.from_numpy(counts).to(device),
        confidence=None if confidence is None else confidence[:, :width].to(device),
    )


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
    ) -> tuple[Draft, IntArray]:
        """Return chains of at most ``limits`` ``[B]`` tokens, and their lengths ``[B]`` on the host.

        Args:
            rows: ``[B]`` slots.
            context: of those rows.
            limits: ``[B]``.
            randomness: of those rows; node i is drawn with ``node=i, depth=i, purpose="draft"``.
            next_logits: given the depth, the tokens so far ``[B, N]`` (columns from the depth on are undefined) and the
                indices of the rows that draft on, returns logits ``[B, 1, V]``, finite or -inf; those of other rows are
                not read.
            follow: given rows, context, limits and how ids are drawn (None: greedily), returns ``[B, N]`` ids one after
                the other, peaks of their logits and their laws, as ``DraftModel.follow``; None if the model cannot.
                It serves if all rows draft greedily or all are sampled, nothing else changes their logits, the
                numbers of the draws are to be had, and the policy reads no law.

        Guarantee: the declared laws are those drawn from; rows at their limit draw nothing. A token is never dropped
            once drawn: a policy ends a chain after it, or before the draw by its law alone.
        Cost: one call of ``follow`` if that serves. Else per depth one call of ``next_logits``, one warping and one
            draw of ``[B, V]``; a policy that reads confidences or entropies is asked on the host at each depth, which
            waits for the device.
        """
        shape, policy = (len(rows), int(limits.max(initial=0))), self.length.policy
        if follow is not None and shape[1] and not (policy.reads_entropy or policy.reads_confidence):
            draws = self._draws(context.warping, randomness)
            if draws is not None or context.warping.is_argmax(self.temperature):
                return self._followed(rows, limits, *follow(rows, context, limits, draws))
        tokens = torch.zeros(shape, dtype=torch.int64, device=self.device)
        counts = torch.from_numpy(limits).to(self.device)
        confidence = torch.zeros(shape, dtype=torch.float64, device=self.device)
        laws: list[Laws] = []
        peaks: list[Tensor] = []
        while (live := np.flatnonzero(limits > len(laws))).size:
            i = len(laws)
            logits = next_logits(i, tokens, live)
            law, peak = self._laws(context, logits, Draft(tokens, counts), i, live)
            peaks.append(peak)
            if policy.reads_entropy:
                limits = ended(limits, i, self.length.draws(rows, _entropy(law, logits)))
                live = np.flatnonzero(limits > i)
                if not live.size:
                    break
            law = _idle_but(law, live)
            drawn = randomness.choose(law, node=i, depth=i, purpose="draft")
            tokens[:, i : i + 1] = drawn
            laws.append(law[:, 0])
            if policy.reads_confidence:
                confidence[:, i] = _confidence(law, logits, drawn)
                limits = ended(limits, i + 1, self.length.continues(rows, confidence[:, : i + 1]))
        self.length.drafted(rows, limits)
        width = len(laws)
        draft = Draft(
            tokens[:, :width],
            torch.from_numpy(limits).to(self.device),
            laws=None if all(law.all_points for law in laws) else Laws.stack(laws, dim=1),
            confidence=confidence[:, :width] if policy.reads_confidence else None,
            undefined=first_undefined(peaks) if peaks else None,
        )
        return draft, limits

    def _draws(self, warping: Warping, randomness: Randomness) -> ChainDraws | None:
        """Return how whole chains are sampled; None if that takes more than numbers known beforehand."""
        if (filters := warping.filters(self.temperature)) is None:
            return None
        keys = randomness.chain_keys("draft")
        return None if keys is None else ChainDraws(filters, keys)

    def _followed(
        self, rows: IntArray, limits: IntArray, ids: Tensor, peaks: Tensor, laws: Laws | None
    ) -> tuple[Draft, IntArray]:
        """Return chains that the model has followed by itself."""
        self.length.drafted(rows, limits)
        counts = torch.from_numpy(limits).to(self.device)
        return Draft(ids, counts, laws=laws, undefined=first_undefined([peaks])), limits

    def _laws(self, context: Context, logits: Tensor, draft: Draft, depth: int, live: IntArray) -> tuple[Laws, Tensor]:
        """Return ``[B, 1]`` the laws of the tokens at ``depth``, and the peaks of their logits, 0 in rows not asked."""
        node = torch.tensor([depth], device=self.device)
        laws, peak = defined(context.warping.laws(logits, draft, node, self.temperature), logits)
        return laws, peak if live.size == len(peak) else peak.masked_fill(_is_idle(peak, live), 0)


def _is_idle(rows: Tensor, live: IntArray) -> Tensor:
    """Return ``[B, 1]`` bool: which rows are not among those at ``live``."""
    idle = torch.ones(len(rows), 1, dtype=torch.bool, device=rows.device)
    idle[torch.from_numpy(live).to(idle.device)] = False
    return idle


def _idle_but(laws: Laws, live: IntArray) -> Laws:
    """Return ``[B, 1]`` laws with a point mass in the rows that do not draw, all but those at ``live``."""
    if live.size == laws.shape[0]:
        return laws
    return laws.pointed(_is_idle(laws.index, live))


def defined(laws: Laws, logits: Tensor) -> tuple[Laws, Tensor]:
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
    if laws.table.is_cpu and not math.isnan(laws.table[:, 0].sum()):
        return laws, peaks
    undefined = laws.table[:, :1].isnan()
    table = torch.where(undefined, 1.0 / laws.table.shape[1], laws.table)
    return Laws(table, laws.index, laws.point), peaks


def first_undefined(peaks: Sequence[Tensor]) -> Tensor:
    """Return ``Draft.undefined`` ``[B, 1]`` of a source with one model.

    Args:
        peaks: ``[B, D]`` of successive depths, one or more; see ``defined``. Finite if nothing was read.
    """
    peak = peaks[0] if len(peaks) == 1 else torch.cat(list(peaks), dim=1)
    if peak.device.type == "cpu" and bool((peak < torch.inf).all()):
        return torch.full((peak.shape[0], 1), NEVER)
    return torch.where(peak < torch.inf, NEVER, torch.arange(peak.shape[1], device=peak.device)).amin(1, keepdim=True)


def _confidence(laws: Laws, logits: Tensor, tokens: Tensor) -> Tensor:
    """Return ``[B]`` the probability of the drawn tokens ``[B, 1]``: under their law, or the model's if greedy."""
    drawn = laws.probs_of(tokens)
    greedy = logits.double().softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return torch.where(laws.index < 0, greedy, drawn).squeeze(1)


def _entropy(laws: Laws, logits: Tensor) -> Tensor:
    """Return ``[B]`` the entropy in nats of the laws ``[B, 1]``, or of the model's if they are greedy."""
    greedy: Tensor = torch.special.entr(logits.double().softmax(-1)).sum(-1)
    if laws.all_points:
        return greedy.squeeze(1)
    drawn = torch.special.entr(laws.table.double()).sum(-1)[laws.index.clamp(min=0)]
    return torch.where(laws.index < 0, greedy, drawn).squeeze(1)


def check_temperature(temperature: float | None) -> None:
    """Raise ValueError if a source's own temperature is not usable; None is the request's."""
    if temperature is not None and not 0 <= temperature < np.inf:
        raise ValueError(f"temperature must be finite and 0 or more, or None (the request's), not {temperature}")
