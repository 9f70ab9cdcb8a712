"""Stop before a token whose law is too uncertain."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from specdec.contracts import BoolArray, FloatArray, IntArray
from specdec.drafting.lengths.feedback import Feedback
from specdec.drafting.lengths.policy import LengthPolicy
from specdec.drafting.lengths.schedules import Constant, Schedule, Tracked, as_schedule
from specdec.theory import check_count, check_finite


@dataclass(frozen=True)
class Entropy(LengthPolicy):
    """Draft the next token while 1 - sqrt(scale H) is at least a threshold, H being the entropy of the token's law.

    A token is accepted with probability 1 - TV(p, q) >= 1 - sqrt(KL / 2) (Pinsker); ``scale`` times the entropy of the
    draft's law stands in for half the unknown divergence. The law is looked at before anything is drawn from it.

    Args:
        threshold: a number, ``Constant``, or ``Tracked``, which follows acceptance.
        scale: 0 or more, per nat.
        max_draft_tokens: lengths stay within it.

    Raises:
        ValueError: a number out of range, or a length that is a fraction.

    Guarantee: lossless: whether a token is drawn depends on its law, never on its value. Reproducible; a row's lengths
        depend on its own request only.
    Cost: O(B V) a depth for the entropies, read back at each depth. The law of the token that is not drawn is paid for.
    Source: Agrawal et al. 2024 (AdaEDL, arXiv 2410.18351).
    Deviations: H is that of the law drawn from, after the request's warping; if a token is chosen greedily, that of
        the model's unwarped law. The moving threshold is ``Tracked``, kept per row. Natural logarithms.
    """

    threshold: float | Constant | Tracked = 0.4
    scale: float = 0.2
    max_draft_tokens: int = 16

    reads_entropy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_finite("scale", self.scale)
        check_count("max_draft_tokens", self.max_draft_tokens, 0)
        as_schedule(self.threshold)

    @property
    def max_depth(self) -> int:
        """The longest draft ever asked for: ``max_draft_tokens``."""
        return self.max_draft_tokens

    @property
    def schedule(self) -> Schedule:
        """What chooses the threshold."""
        return as_schedule(self.threshold)

    @property
    def adaptive(self) -> bool:
        """Whether the threshold follows how drafts fare."""
        return self.schedule.adaptive

    def open(self, num_rows: int) -> "_Session":
        """Return a session for a run of ``num_rows`` slots."""
        return _Session(self, num_rows)


class _Session(Feedback):
    policy: Entropy

    def __init__(self, policy: Entropy, num_rows: int) -> None:
        super().__init__(num_rows)
        self.policy = policy
        self.schedule = policy.schedule.open(num_rows)

    def begin(self, rows: IntArray) -> None:
        self.schedule.begin(rows)
        super().begin(rows)

    def limits(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        self.schedule.update(rows, self.settle(rows, num_committed))
        return np.full(len(rows), self.policy.max_draft_tokens, dtype=np.int64)

    def draws(self, rows: IntArray, entropy: FloatArray) -> BoolArray:
        bound = 1 - (self.policy.scale * entropy) ** 0.5
        return bound >= self.schedule.values(rows)
