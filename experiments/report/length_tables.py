"""From one measured run: what other draft lengths would have done, and what keeps an arm from being faster."""

from typing import Any

from scipy import optimize

from experiments.advise.predicting import Costs, Prediction, Reading, best, obstacle, predict
from experiments.advise.shortening import Steps
from experiments.harness.run_outcome import Outcome
from experiments.report.runs import Run
from specdec.stats import Stats
from specdec.theory import WidthCurve

_NAMES = ("request", "num_drafted", "num_accepted", "num_emitted")


def drafts_chains(stats: Stats) -> bool:
    """Tell whether an arm drafted chains, and nothing else was scored with them."""
    return stats.num_drafted > 0 and len(stats.tried_at_rank) <= 1 and not stats.num_scouts


def longest_of(stats: Stats) -> int:
    """Return the longest draft of an arm."""
    return len(stats.steps_by_depth) - 1


def _steps(outcome: Outcome, arm: str) -> Steps:
    """Return an arm's steps; each round of a unit is a batch of its own."""
    batches: list[dict[str, list[Any]]] = []
    for entry in outcome.done:
        records = entry["arms"][arm]["records"]
        for number in dict.fromkeys(records["round"]):
            own = [i for i, round_ in enumerate(records["round"]) if round_ == number]
            batches.append({name: [records[name][i] for i in own] for name in _NAMES})
    return Steps.of(batches)


def _nodes(stats: Stats) -> float:
    """Return the nodes of all rows of a pass together."""
    return stats.num_scored_nodes / stats.target_calls * stats.num_steps / stats.target_calls


def _curve(plain: Stats, stats: Stats) -> WidthCurve:
    """Return the time of passes by their nodes: plain decoding's, the arm's, and straight between them."""
    once, widths = plain.seconds_per_call("score") or float("nan"), [1]
    costs = [1.0]
    for one in (plain, stats):
        if round(_nodes(one)) > widths[-1]:
            widths.append(round(_nodes(one)))
            costs.append((one.seconds_per_call("score") or 0.0) / once)
    return WidthCurve.of_seconds(widths, costs)


def _inputs_of(run: Run, arm: str) -> tuple[Steps, Costs, range] | None:
    """Return an arm's steps, what they cost, and the lengths that they tell of; None if it did not draft chains."""
    stats = run.drafting[arm]
    if not drafts_chains(stats):
        return None
    steps = _steps(run.outcome, arm)
    costs = Costs.of(
        [Reading.of(run.plain, stats)], _curve(run.plain, stats), run.plain.num_steps / run.plain.target_calls
    )
    return steps, costs, range(1, longest_of(stats) + 1)


def predictions(run: Run, arm: str) -> list[Prediction]:
    """Return what drafts of every length up to the arm's own would do: its steps with their drafts cut shorter.

    A pass is taken to cost the more, the more nodes it has, straight from plain decoding's to the arm's. Empty if the
    arm did not draft chains.
    """
    found = _inputs_of(run, arm)
    if found is None:
        return []
    steps, costs, lengths = found
    return [predict(steps, costs, length) for length in lengths]


def in_the_way(run: Run, arm: str) -> tuple[Prediction, str | None] | None:
    """Return the best length and what is in its way, None if it pays; None if the arm did not draft chains."""
    found = _inputs_of(run, arm)
    return None if found is None else (best(*found), obstacle(*found))


def acceptance_for(stats: Stats, tokens: float) -> float | None:
    """Return the acceptance rate at which chains as long as an arm's yield so many tokens a step; None: no rate does.

    Args:
        stats: of the arm, which drafted.
        tokens: above 1.
    """

    def lacking(alpha: float) -> float:
        return (stats.theoretical_block_efficiency(alpha) or 0.0) - tokens

    return None if lacking(1.0) < 0 else float(optimize.brentq(lacking, 0.0, 1.0))
