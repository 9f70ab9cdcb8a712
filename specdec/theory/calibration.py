"""What a length policy knows of a source and a machine: how likely drafted tokens stand, and what they cost."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.theory.formulas import expected_tokens, optimal_gamma
from specdec.theory.ranges import check_finite, check_share
from specdec.theory.width import FloatArray, WidthCurve

_MAX_BINS = 32
_LONGEST = 1000  # If theory knows no best length (free drafts, certain acceptance), the rate is that of this length.


@dataclass(frozen=True)
class Monotone:
    """A non-decreasing function, linear between its knots and constant beyond them.

    Args:
        x: ascending.
        y: of the same length, non-decreasing.

    Raises:
        ValueError: no knots, or ones in another order.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (len(self.x) == len(self.y) > 0 and (np.diff(self.x) > 0).all() and (np.diff(self.y) >= 0).all()):
            raise ValueError(f"x must ascend and y must not descend, both of one length: got {self.x} and {self.y}")

    def __call__(self, values: FloatArray) -> FloatArray:
        """Return the function's values, of any shape."""
        return np.asarray(np.interp(values, self.x, self.y), dtype=np.float64)

    @staticmethod
    def fit(x: FloatArray, y: FloatArray, from_zero: bool = False) -> "Monotone":
        """Return the isotonic regression of y on x ``[S]``, over at most 32 bins of about equal weight.

        Args:
            x: ``[S]`` in [0, 1]; equal values share a bin.
            y: ``[S]``.
            from_zero: add the knot (0, 0), for what lies below all x.

        Cost: O(S log S).
        """
        from scipy import optimize  # heavy: decoding without a calibration never loads it

        edges = np.unique(np.quantile(x, np.arange(_MAX_BINS) / _MAX_BINS, method="higher"))
        at = np.searchsorted(edges, x, side="right")
        counts = np.bincount(at)
        full = counts > 0
        weights = counts[full].astype(np.float64)
        means = [np.bincount(at, weights=values)[full] / weights for values in (x, y)]
        fitted = optimize.isotonic_regression(means[1], weights=weights).x
        # Means of neighbouring bins may trade places by a rounding error.
        centres = np.maximum.accumulate(means[0])
        knots = {0.0: 0.0} if from_zero else {}
        knots |= dict(zip(centres.tolist(), np.clip(fitted, 0, 1).tolist(), strict=True))
        if from_zero:
            knots[0.0] = 0.0
        return Monotone(tuple(knots), tuple(knots.values()))


@dataclass(frozen=True)
class Calibration:
    """Say what the next drafted token is worth, and what it costs.

    The unit of time is a plain step: a pass of one node, with all that is done around it.

    Args:
        first: probability that the first token of a draft is accepted.
        acceptance: h, from a token's confidence to the probability that it is accepted given that it is reached.
        survival: g, from the product of h over a draft's tokens to the probability that all of them and the next token
            are accepted. Not asked of an empty draft: its product 1 is no sign of confidence.
        draft_cost: c', of drafting a token, in plain steps (c, ``Stats.draft_cost_ratio``, is in passes of one node).
        width_cost: v'(n), of a step that verifies n nodes a row, the pending token among them, in plain steps. It holds
            at the batch size that the curve names.
        rate: tokens per plain step's time that the best fixed length emits; a request's own rate begins there.
        num_tokens: drafted tokens that it was fitted to.

    Raises:
        ValueError: a negative or infinite cost or rate, or a ``first`` that is not from 0 to 1.
    """

    first: float
    acceptance: Monotone
    survival: Monotone
    draft_cost: float
    width_cost: WidthCurve
    rate: float
    num_tokens: int = 0

    def __post_init__(self) -> None:
        check_share("first", self.first)
        check_finite("draft_cost", self.draft_cost)
        check_finite("rate", self.rate)

    def step_cost(self, num_drafted: NDArray[np.int64]) -> FloatArray:
        """Return what steps cost that draft and verify ``num_drafted`` tokens, ``[...]``: v'(n + 1) + c' n, float64."""
        return self.width_cost.at(num_drafted + 1) + self.draft_cost * num_drafted

    def next_costs(self, longest: int) -> FloatArray:
        """Return ``[longest]`` what the next token costs after 0, 1, 2, ... drafted ones, of at most ``longest``.

        It is the least price of an expected token, over all numbers m of tokens that may follow n drafted ones::

            min over m of  (v'(n + m + 1) - v'(n + 1) + c' m) / (1 + b + ... + b^(m - 1)),    b = ``first``

        With m = 1 that is c' and the node's own share of v'. A larger m counts if a node is expensive and those after
        it are cheap, as at the edge of a matrix tile. Each of them is worth b times the one before.

        Cost: O(longest^2).
        """
        costs = self.step_cost(np.arange(longest + 1))
        worth = np.cumsum(self.first ** np.arange(longest))
        prices = [((costs[n + 1 :] - costs[n]) / worth[: longest - n]).min() for n in range(longest)]
        return np.array(prices, dtype=np.float64)

    def best_length(self, num_rows: int, longest: int) -> int:
        """Return how many of ``longest`` drafted tokens a row pay to verify in a batch, on average.

        It is the k with the most tokens for the time of a step, the smallest among equals::

            (1 + b + ... + b^k) / (v'(R (k + 1) / B) + c' longest),    b = ``first``

        R is the number of rows and B that of the curve: a pass costs what its nodes cost, whatever rows they are of.

        Cost: O(longest).
        """
        lengths = np.arange(longest + 1)
        tokens = np.cumsum(self.first**lengths)
        costs = self.width_cost.at(num_rows * (lengths + 1) / self.width_cost.batch_size) + self.draft_cost * longest
        return int((tokens / costs).argmax())

    @staticmethod
    def independent(alpha: float, draft_cost: float, node_cost: float = 0.0) -> "Calibration":
        """Return what holds if every token is accepted with probability ``alpha``, whatever its confidence.

        Args:
            alpha: the probability.
            draft_cost: c, in plain steps.
            node_cost: what each node adds to a step, in plain steps.

        Raises:
            ValueError: ``alpha`` is no probability, or a cost is negative or infinite.
        """
        cost = draft_cost + node_cost
        best = _LONGEST if alpha > cost == 0 or 1 == alpha > cost else optimal_gamma(alpha, cost)
        rate = expected_tokens(alpha, best) / (1 + best * cost)
        maps = Monotone((1.0,), (alpha,)), Monotone((0.0, 1.0), (0.0, alpha))
        return Calibration(alpha, *maps, draft_cost, WidthCurve.linear(node_cost), rate)

    @staticmethod
    def fit(
        confidence: Sequence[FloatArray],
        num_accepted: Sequence[int],
        draft_cost: float,
        width_cost: WidthCurve,
    ) -> "Calibration":
        """Fit the survivals to drafts and what became of them.

        Args:
            confidence: for each draft, ``[N]`` those of its tokens; drafts should not have been ended by their
                confidence.
            num_accepted: for each draft, how many of its tokens were accepted.
            draft_cost: c', in plain steps.
            width_cost: v'(n), in plain steps.

        Raises:
            ValueError: not a single token was drafted.
        """
        drafts = [draft for draft in confidence if len(draft)]
        if not drafts:
            raise ValueError("nothing was drafted: there is nothing to fit; give prompts on which the source drafts")
        kept = [n for n, draft in zip(num_accepted, confidence, strict=True) if len(draft)]
        # A verdict was passed on the accepted tokens and the first rejected one.
        stood = [np.arange(len(draft)) < n for n, draft in zip(kept, drafts, strict=True)]
        judged = [np.arange(len(draft)) <= n for n, draft in zip(kept, drafts, strict=True)]
        values, told, seen = np.concatenate(drafts), np.concatenate(stood), np.concatenate(judged)
        acceptance = Monotone.fit(values[seen], told[seen].astype(np.float64))
        first = float(np.mean([one[0] for one in stood]))
        before = np.concatenate([np.cumprod(acceptance(draft[:-1])) for draft in drafts])
        then = np.concatenate([one[1:] for one in stood]).astype(np.float64)
        linear = Monotone((0.0, 1.0), (0.0, first))
        survival = Monotone.fit(before, then, from_zero=True) if len(then) else linear
        made = Calibration(first, acceptance, survival, draft_cost, width_cost, 1.0, len(values))
        return replace(made, rate=_best_rate(stood, made))

    def as_dict(self) -> dict[str, Any]:
        """Return plain types for JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Calibration":
        """Return what ``as_dict`` wrote. Raises TypeError or KeyError for fields other than those of this version."""
        maps = {name: Monotone(tuple(plain[name]["x"]), tuple(plain[name]["y"])) for name in ("acceptance", "survival")}
        return Calibration(**{**plain, **maps, "width_cost": WidthCurve.from_dict(plain["width_cost"])})


def _best_rate(stood: Sequence[NDArray[np.bool_]], costs: Calibration) -> float:
    """Return the tokens per plain step's time of the best fixed length, length 0 included."""
    longest = max(map(len, stood))
    reached = [[bool(one[i]) for one in stood if len(one) > i] for i in range(longest)]
    tokens = 1 + np.cumsum([0.0, *(np.mean(one) for one in reached)])
    return float((tokens / costs.step_cost(np.arange(longest + 1))).max())
