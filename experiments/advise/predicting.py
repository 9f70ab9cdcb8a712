"""From one run with long drafts: what shorter ones would have done, which length pays most, and what is in the way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specdec.contracts import IntArray
from specdec.stats import Stats
from specdec.theory import WidthCurve, predicted_speedup

# A smaller gain is not worth a second model or a wider pass.
WORTH = 1.02


@dataclass(frozen=True)
class Steps:
    """The steps of a run, as far as draft lengths change them.

    Args:
        step: ``[S]`` the scoring call of each row's step.
        request: ``[S]`` whose step it is.
        batch: ``[S]`` the batch of requests that began together.
        drafted, accepted: ``[S]`` nodes of its draft, a chain, and how many stood.
        emitted: ``[S]`` tokens.
    """

    step: IntArray
    request: IntArray
    batch: IntArray
    drafted: IntArray
    accepted: IntArray
    emitted: IntArray

    @staticmethod
    def of(records: Sequence[Mapping[str, Sequence[Any]]]) -> "Steps":
        """Return the steps of some runs, a batch each, from the columns of their records."""
        parts, first = [], np.zeros(2, dtype=np.int64)
        for number, columns in enumerate(records):
            names = np.array([columns["step"], columns["request"]], dtype=np.int64)
            own = [columns["num_drafted"], columns["num_accepted"], columns["num_emitted"]]
            parts.append(np.array([*(names + first[:, None]), np.full(names.shape[1], number), *own], dtype=np.int64))
            first += names.max(axis=1, initial=-1) + 1
        return Steps(*np.concatenate(parts, axis=1))

    def tokens(self, length: int) -> float:
        """Return tau, the mean tokens of a step with drafts cut at a length."""
        return 1 + float(np.minimum(self.accepted, length).mean())

    def nodes(self, length: int) -> float:
        """Return the mean nodes of a row in a pass, the pending token among them."""
        return 1 + float(np.minimum(self.drafted, length).mean())

    def drafting(self, length: int) -> float:
        """Return the mean of the longest draft of a scoring call: so many tokens come one after the other."""
        longest = np.zeros(int(self.step.max()) + 1, dtype=np.int64)
        np.maximum.at(longest, self.step, np.minimum(self.drafted, length))
        return float(longest.mean())

    def rows(self, length: int | None) -> float:
        """Return the mean rows in flight; a request with fewer tokens, or more of them a step, ends before others.

        Args:
            length: at which drafts are cut; None: no drafts.
        """
        emitted = np.bincount(self.request, self.emitted)
        stood = np.zeros_like(self.accepted) if length is None else np.minimum(self.accepted, length)
        needed = emitted / (1 + np.bincount(self.request, stood) / np.bincount(self.request))
        batch = np.zeros(len(needed), dtype=np.int64)
        batch[self.request] = self.batch
        last = np.zeros(int(batch.max()) + 1)
        np.maximum.at(last, batch, needed)
        return float(needed.sum() / last.sum())


@dataclass(frozen=True)
class Costs:
    """What the parts of a step take, in plain passes.

    Args:
        nodes: time of a pass by the nodes of all its rows together, over that of one node.
        draft: c, of a drafted token.
        other: all that is neither drafting nor scoring.
        plain: the same of plain decoding.
        scoring: the run's own passes over what ``nodes`` says of them: less than 1 of a source whose drafting has done
            a part of them.
    """

    nodes: WidthCurve
    draft: float
    other: float
    plain: float
    scoring: float = 1.0

    @staticmethod
    def of(plain: Stats, drafted: Stats, nodes: WidthCurve, steps: "Steps") -> "Costs":
        """Return the costs of a run beside a plain one of the same prompts."""
        once = plain.seconds_per_call("score") or float("nan")
        longest = int(steps.drafted.max(initial=0))
        curve = nodes.at(steps.rows(longest) * steps.nodes(longest)) / nodes.at(steps.rows(None))
        scoring = (drafted.width_cost(once) or float("nan")) / float(curve)
        own = (drafted.seconds_per_call("verify", "commit", "other") or 0.0) / once
        beside = (plain.seconds_per_call("propose", "verify", "commit", "other") or 0.0) / once
        return Costs(nodes, drafted.draft_cost_ratio(once) or 0.0, own, beside, scoring)


@dataclass(frozen=True)
class Prediction:
    """What drafts of a length would do.

    Attributes:
        length: tokens of a draft.
        tokens: tau.
        rows: in flight, over plain decoding's.
        width: v.
        drafting: mean tokens that a step drafts one after the other, c each.
        speedup: over plain decoding as it runs.
    """

    length: int
    tokens: float
    rows: float
    width: float
    drafting: float
    speedup: float


def predict(steps: Steps, costs: Costs, length: int) -> Prediction:
    """Return what drafts of a length would do; those of the run were as long at least."""
    plain, rows, tokens = steps.rows(None), steps.rows(length), steps.tokens(length)
    width = costs.scoring * float(costs.nodes.at(rows * steps.nodes(length)) / costs.nodes.at(plain))
    drafting = steps.drafting(length)
    speedup = predicted_speedup(tokens * rows / plain, width, costs.draft * drafting, costs.other) * (1 + costs.plain)
    return Prediction(length, tokens, rows / plain, width, drafting, speedup)


def best(steps: Steps, costs: Costs, lengths: Sequence[int]) -> Prediction:
    """Return the prediction of the length that pays most."""
    return max((predict(steps, costs, length) for length in lengths), key=lambda found: found.speedup)


def obstacle(steps: Steps, costs: Costs, lengths: Sequence[int]) -> str | None:
    """Return why no length pays: which part would have to be smaller, and how small; None if one pays."""
    found = best(steps, costs, lengths)
    if found.speedup >= WORTH:
        return None
    free = [predict(steps, replace(costs, draft=0.0), length) for length in lengths]
    # The cost of a token at which drafts of each length begin to pay.
    limits = [(one.speedup / WORTH - 1) * (one.width + costs.other) / one.drafting for one in free if one.drafting]
    most = max(limits, default=0.0)
    if most > 0:
        return f"drafting costs {costs.draft:.2f} of a pass a token; it would pay below {most:.2f}"
    lean = best(steps, replace(costs, draft=0.0, other=min(costs.other, costs.plain)), lengths)
    if lean.speedup >= WORTH:
        return f"a step costs {costs.other:.2f} of a pass beside drafting and scoring, a plain one {costs.plain:.2f}"
    flat = replace(costs, draft=0.0, other=min(costs.other, costs.plain), nodes=WidthCurve((1,), (1.0,)))
    if best(steps, flat, lengths).speedup < WORTH:
        return f"even free drafts yield {steps.tokens(max(lengths)):.2f} tokens a step at most: too few stand"
    return (
        f"a pass with drafts of {found.length} costs {found.width:.2f} plain ones for {found.tokens:.2f} tokens a row"
    )
