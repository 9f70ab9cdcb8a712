"""How many tokens a source drafts: policies that decide per row, before a token is drawn or after keeping it.

A policy never sees a drawn token that is then dropped (that would bias the output law): it limits a draft before the
first draw, and may end it after a token that stays in it.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import Budget, IntArray


class LengthSession(Protocol):
    """A policy at work on one run; what it remembers is per row."""

    def begin(self, rows: IntArray) -> None:
        """Forget what ``rows`` held: new requests take them."""

    def limits(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        """Return ``[B]`` how many tokens each row may draft in this step; 0 skips the row.

        Args:
            rows: ``[B]`` slots.
            num_committed: ``[B]`` ids that stand. Its growth since the last call tells how the last draft fared.
        """

    def continues(self, rows: IntArray, confidence: Tensor) -> Tensor:
        """Return ``[B]`` bool: whether each row drafts another token after those it has.

        Args:
            rows: ``[B]`` slots.
            confidence: ``[B, D]`` of the tokens drafted so far, all of which are kept.
        """


class LengthPolicy(Protocol):
    """A way of choosing draft lengths; ``open`` starts a run."""

    @property
    def max_depth(self) -> int:
        """The longest draft ever asked for."""

    @property
    def reads_confidence(self) -> bool:
        """Whether ``continues`` is to be asked; if not, sources need not compute confidences."""

    def open(self, num_rows: int) -> LengthSession:
        """Return a session for a run of ``num_rows`` slots."""


@dataclass(frozen=True)
class Fixed:
    """Draft ``num_draft_tokens`` in every step, or what the budget leaves of them.

    It remembers nothing, so it is its own session.

    Raises:
        ValueError: a negative number or a fraction. 0 is plain decoding.
    """

    num_draft_tokens: int

    def __post_init__(self) -> None:
        if not isinstance(self.num_draft_tokens, int) or self.num_draft_tokens < 0:
            raise ValueError(f"num_draft_tokens must be an integer, 0 or more, not {self.num_draft_tokens!r}")

    @property
    def max_depth(self) -> int:
        """See ``LengthPolicy``."""
        return self.num_draft_tokens

    @property
    def reads_confidence(self) -> bool:
        """See ``LengthPolicy``."""
        return False

    def open(self, num_rows: int) -> LengthSession:
        """See ``LengthPolicy``."""
        return self

    def begin(self, rows: IntArray) -> None:
        """See ``LengthSession``."""

    def limits(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        """See ``LengthSession``."""
        return np.full(len(rows), self.num_draft_tokens, dtype=np.int64)

    def continues(self, rows: IntArray, confidence: Tensor) -> Tensor:
        """See ``LengthSession``."""
        return torch.ones(len(rows), dtype=torch.bool, device=confidence.device)


def resolve(num_draft_tokens: int | None, length: LengthPolicy | None, default: int) -> LengthPolicy:
    """Return the policy that a source's two arguments ask for.

    Args:
        num_draft_tokens: shorthand for ``Fixed``.
        length: a policy.
        default: tokens to draft where neither is given.

    Raises:
        ValueError: both are given.
    """
    if length is None:
        return Fixed(default if num_draft_tokens is None else num_draft_tokens)
    if num_draft_tokens is not None:
        raise ValueError("give num_draft_tokens or length, not both (num_draft_tokens=k is length=Fixed(k))")
    return length


def depth_limits(length: LengthSession, rows: IntArray, num_committed: IntArray, budget: Budget) -> IntArray:
    """Return ``[B]`` how deep a chain may go in each row: the policy's limit within the budget."""
    allowed = np.minimum(budget.max_depth, budget.max_nodes)
    return np.clip(length.limits(rows, num_committed), 0, np.maximum(allowed, 0))
