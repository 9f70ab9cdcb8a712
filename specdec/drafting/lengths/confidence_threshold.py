"""Threshold decoding: draft the next token while it is likely enough to stand."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from specdec.contracts import BoolArray, FloatArray, IntArray
from specdec.drafting.lengths.feedback import Fate, Feedback
from specdec.drafting.lengths.policy import LengthPolicy
from specdec.drafting.lengths.schedules import Constant, MarginalValue, ScheduleSession, Tracked, as_schedule
from specdec.theory import Calibration, check_count, check_flag

# A row's own survivals over those predicted: how many accepted tokens the calibration counts as, and how many steps the
# row remembers.
_PRIOR_TOKENS, _MEMORY = 8.0, 64.0


@dataclass(frozen=True)
class Threshold(LengthPolicy):
    """Draft the next token while its predicted survival is at least a threshold t.

    With confidences q_1 .. q_i of the tokens drafted so far, the next one is predicted to survive (all of them and
    itself to be accepted) with probability S = rho g(h(q_1) ... h(q_i)). The calibration's monotone h turns a token's
    confidence into its acceptance, and its monotone g the product, the draft's cumulative confidence, into the
    survival of the next token (of an empty draft, a constant); without a calibration S is the plain product. rho is the
    row's own correction: accepted over predicted tokens, in its last 64 steps or so, shrunk to 1.

    By default t = r d(n). r is the rate of tokens so far. d(n) is what the next token costs after n drafted ones, in
    plain steps (``Calibration.next_costs``): the cost c' of drafting it, and what its node adds to the step on the
    measured curve v'. A further token adds S tokens and costs d, so drafting it raises the rate as long as S >= r d. If
    every token is accepted with probability alpha, independently, this stops at the best fixed length; if moreover
    every node adds the same d', that is ``theory.optimal_gamma(alpha, c' + d')``. If the best length is 0, a row skips
    its drafts and drafts one token every ``probe_every`` steps, so that rho can learn of better times.

    Args:
        calibration: measured costs and survivals (``specdec.calibrate``); stored in the result. Needed for the default
            threshold.
        threshold: None: the moving threshold above. A number, or ``Constant``: that. ``Tracked``: it follows
            acceptance.
        per_token: compare the confidence of the last token alone, as it is, instead of S.
        max_draft_tokens: lengths stay within it.
        probe_every: steps from one skipped draft to the next probe.

    Raises:
        ValueError: a number out of range, or a count that is a fraction; neither calibration nor threshold; a
            calibration of another type.

    Guarantee: lossless: a draft ends after a token that is kept, never before one that was drawn. Reproducible: no
        clock is read, and a row's lengths depend on its own request only.
    Cost: O(B) a drafted token on the host; the confidences of one depth are read back at each depth.
    Source: marginal-value stopping; Huang et al. 2024 (SpecDec++, arXiv 2405.19715), theorem: the best policy stops
        where the predicted probability of a rejection exceeds a threshold.
    Deviations: its threshold is a constant. Settings that others published are:

        - transformers, ``assistant_confidence_threshold=x`` (0.4): ``Threshold(threshold=x, per_token=True)``; if
          scikit-learn is installed, it also refits x on its past drafts.
        - Kangaroo (Liu et al. 2024, arXiv 2404.18911), x = 0.6: the same.
        - Draft & Verify (Zhang et al. 2023, arXiv 2309.08168): ``Threshold(threshold=Tracked(), per_token=True)``.
    """

    calibration: Calibration | None = None
    threshold: float | Constant | Tracked | None = None
    per_token: bool = False
    max_draft_tokens: int = 16
    probe_every: int = 16

    reads_confidence: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.threshold is None and self.calibration is None:
            raise ValueError("give a calibration (specdec.calibrate makes one), or a threshold")
        if not isinstance(self.calibration, Calibration | None):
            raise ValueError(f"calibration must be a Calibration, not {self.calibration!r}; did you mean threshold=?")
        check_flag("per_token", self.per_token)
        if self.threshold is None and self.per_token:
            raise ValueError("per_token=True compares a confidence: give the threshold to compare it with")
        check_count("max_draft_tokens", self.max_draft_tokens, 0)
        check_count("probe_every", self.probe_every, 1)
        if self.threshold is not None:
            as_schedule(self.threshold)

    @property
    def max_depth(self) -> int:
        """The longest draft ever asked for: ``max_draft_tokens``."""
        return self.max_draft_tokens

    @property
    def adaptive(self) -> bool:
        """Whether the threshold, or the prediction of acceptance, follows how drafts fare."""
        return self.threshold is None or self.calibration is not None or as_schedule(self.threshold).adaptive

    def open(self, num_rows: int) -> "_Session":
        """Return a session for a run of ``num_rows`` slots."""
        return _Session(self, num_rows)


class _Session(Feedback):
    """Per row: the threshold, the draft under way, and rho as discounted sums."""

    policy: Threshold

    def __init__(self, policy: Threshold, num_rows: int) -> None:
        super().__init__(num_rows)
        self.policy, self.calibration = policy, policy.calibration
        self.schedule: ScheduleSession
        if policy.threshold is not None:
            self.schedule = as_schedule(policy.threshold).open(num_rows)
        else:
            assert policy.calibration is not None
            self.schedule = MarginalValue(policy.calibration, policy.max_draft_tokens, num_rows)
        self.skipped = np.zeros(num_rows, dtype=np.int64)
        self.accepted, self.expected = np.zeros(num_rows), np.zeros(num_rows)
        self.cumulative = np.ones(num_rows)
        self.predicted = np.zeros((num_rows, policy.max_draft_tokens + 1))  # survival of the token at each depth
        self.promised = np.zeros(num_rows)  # sum of it over the tokens that were drafted

    def begin(self, rows: IntArray) -> None:
        self.schedule.begin(rows)
        super().begin(rows)
        self.skipped[rows], self.accepted[rows], self.expected[rows] = 0, 0, 0

    def limits(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        fate = self.settle(rows, num_committed)
        self.schedule.update(rows, fate)
        self._learn(rows, fate)
        self.cumulative[rows], self.promised[rows] = 1.0, 0.0
        wants = self._survives(rows, 0) >= self.schedule.values(rows, 0)
        probes = ~wants & (self.skipped[rows] >= self.policy.probe_every - 1)
        self.skipped[rows] = np.where(wants | probes, 0, self.skipped[rows] + 1)
        longest = self.policy.max_draft_tokens
        return np.where(wants, longest, np.where(probes, min(longest, 1), 0))

    def continues(self, rows: IntArray, confidence: FloatArray) -> BoolArray:
        last = confidence[:, -1]
        if self.calibration is not None or not self.policy.per_token:  # else nothing reads the products
            self.cumulative[rows] *= last if self.calibration is None else self.calibration.acceptance(last)
            survival = self._survives(rows, confidence.shape[1])
        score = last if self.policy.per_token else survival
        return score >= self.schedule.values(rows, confidence.shape[1])

    def note_counts(self, rows: IntArray, counts: IntArray) -> None:
        super().note_counts(rows, counts)
        is_drafted = np.arange(self.predicted.shape[1]) < counts[:, None]
        self.promised[rows] = np.where(is_drafted, self.predicted[rows], 0.0).sum(1)

    def _survives(self, rows: IntArray, depth: int) -> FloatArray:
        """Return ``[B]`` the predicted survival of the token after ``depth`` tokens, and keep it without rho."""
        if self.calibration is None:
            return self.cumulative[rows]
        product = self.cumulative[rows]
        survival = self.calibration.survival(product) if depth else np.full_like(product, self.calibration.first)
        self.predicted[rows, depth] = survival
        own = (self.accepted[rows] + _PRIOR_TOKENS) / (self.expected[rows] + _PRIOR_TOKENS)
        return np.minimum(own * survival, 1.0)

    def _learn(self, rows: IntArray, fate: Fate) -> None:
        """Take the last drafts into rho; steps without a draft say nothing of it."""
        told = fate.known & (fate.drafted > 0)
        rows, kept = rows[told], 1 - 1 / _MEMORY
        self.accepted[rows] = kept * self.accepted[rows] + fate.accepted[told]
        self.expected[rows] = kept * self.expected[rows] + self.promised[rows]
