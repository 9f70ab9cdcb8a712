"""The contract of a rule, which judges a draft, and the law of its decision."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from specdec.contracts.draft import Draft
from specdec.laws import Laws


@dataclass(frozen=True)
class Verdict:
    """The law of a decision: where the walk through the draft stops, and what follows there.

    Attributes:
        stops: laws of shape ``[B]`` over scoring nodes 0..N (root first); scouts and padding have probability 0,
            and so has every stop whose next law would be undefined.
        width: N + 1, padding included.
    """

    stops: Laws
    width: int
    _next: Any = field(repr=False)

    @property
    def stop_probs(self) -> Tensor:
        """``[B, N+1]`` float64, rows sum to 1. Cost: O(B N), a copy."""
        return self.stops.dense(self.width).double()

    def next_law(self, stop: Tensor) -> Laws:
        """Return the law of the token after node ``stop[b]``, shape ``[B]``. Evaluated at the drawn stop only.

        Cost: the rule's; O(B V) if the residual of sampled rows is needed.
        """
        laws: Laws = self._next(stop)
        return laws


class VerificationRule(Protocol):
    """A pure function from a draft and the target's laws to the law of the decision.

    What a rule can do is declared by its class, and is no constructor argument.
    """

    @property
    def name(self) -> str:
        """Its name, by which users choose it."""

    @property
    def lossless(self) -> bool:
        """Whether the output law is exactly the target's."""

    @property
    def trees(self) -> bool:
        """Whether the rule has a meaning on drafts that branch."""

    @property
    def coupled(self) -> bool:
        """Whether draws are keyed by absolute position alone, and target laws become the points so drawn."""

    @property
    def follows_points(self) -> bool:
        """Whether a walk through deterministic nodes goes wherever it can, if all target laws are points.

        At each node that is the first verified child that carries the target's id. For greedy rows, and in coupled mode
        whatever laws the nodes have, the engine then compares ids itself, without asking the rule.
        """

    def __call__(self, draft: Draft, target_laws: Laws | Tensor) -> Verdict:
        """Judge a draft.

        Args:
            draft: as proposed.
            target_laws: shape ``[B, N+1]``, the target's law at every node, or its probabilities ``[B, N+1, V]``.

        Raises:
            ValueError: the rule has no meaning on this draft; the message names one that has.
        """
