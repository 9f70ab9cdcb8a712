"""Why an arm is as fast as it is, in words: other draft lengths, and what a losing draft would need to break even."""

from dataclasses import replace
from typing import Any

from scipy import optimize

from experiments.advise.advice_parts import Parts
from experiments.advise.predicting import WORTH, Costs, best, obstacle, predict
from experiments.advise.shortening import Steps
from experiments.harness.findings.causes import cause_sentences
from experiments.harness.findings.step_columns import branches
from experiments.harness.run_outcome import Outcome, speed_words
from experiments.report.runs import Run
from specdec.stats import Stats
from specdec.theory import WidthCurve

_NAMES = ("request", "num_drafted", "num_accepted", "num_emitted")


def drafts_chains(stats: Stats) -> bool:
    """Tell whether an arm drafted chains, and nothing else was scored with them."""
    return stats.num_drafted > 0 and not branches(stats) and not stats.num_scouts


def longest_of(stats: Stats) -> int:
    """Return the longest draft of an arm."""
    return len(stats.steps_by_depth) - 1


def _has_fixed_length(outcome: Outcome, arm: str) -> bool:
    """Tell whether all drafts of an arm that drafted chains are as long as its longest, those cut by a budget aside."""
    lengths = {
        drafted
        for records in outcome.records(arm)
        for drafted, shortened in zip(records["num_drafted"], records["shortened"], strict=True)
        if not shortened
    }
    return len(lengths) <= 1


def _steps(outcome: Outcome, arm: str) -> Steps:
    """Return an arm's steps; each round of a unit is a batch of its own."""
    batches: list[dict[str, list[Any]]] = []
    for records in outcome.records(arm):
        for number in dict.fromkeys(records["round"]):
            own = [i for i, round_ in enumerate(records["round"]) if round_ == number]
            batches.append({name: [records[name][i] for i in own] for name in _NAMES})
    return Steps.of(batches)


def _nodes(stats: Stats) -> float:
    """Return the nodes of all rows of a pass together."""
    return stats.num_scored_nodes / stats.target_calls * stats.num_steps / stats.target_calls


def _curve(plain: Stats, stats: Stats) -> WidthCurve:
    """Return the time of passes by their nodes: plain decoding's, the arm's, and linear between them."""
    once, widths = plain.seconds_per_call("score") or float("nan"), [1]
    costs = [1.0]
    for one in (plain, stats):
        if round(_nodes(one)) > widths[-1]:
            widths.append(round(_nodes(one)))
            costs.append((one.seconds_per_call("score") or 0.0) / once)
    return WidthCurve.of_seconds(widths, costs)


def predictions(run: Run, arm: str) -> dict[int, Parts]:
    """Return what drafts of every length up to the arm's own would do: its steps with their drafts cut shorter.

    The cost of a pass is taken to be linear in its nodes, from plain decoding's to the arm's. Empty if the arm did not
    draft chains.
    """
    stats = run.drafting[arm]
    if not drafts_chains(stats):
        return {}
    steps, curve = _steps(run.outcome, arm), _curve(run.plain, stats)
    return predict(steps, Costs.of(run.plain, [stats], curve), range(1, longest_of(stats) + 1))


def acceptance_for(stats: Stats, tokens: float) -> float | None:
    """Return the acceptance rate at which chains as long as an arm's yield ``tokens`` a step; None: no rate does.

    Args:
        stats: of the arm, which drafted.
        tokens: above 1.
    """

    def lacking(alpha: float) -> float:
        return (stats.theoretical_block_efficiency(alpha) or 0.0) - tokens

    return None if lacking(1.0) < 0 else float(optimize.brentq(lacking, 0.0, 1.0))


# What takes a smaller share of a step is not worth a sentence.
_NOTICEABLE = 0.02


def shares(parts: Parts) -> dict[str, float]:
    """Return the shares of drafting, scoring and all else in an arm's step."""
    found = {"drafting": parts.drafting, "scoring": parts.scoring, "the rest": parts.rest}
    return {name: part / sum(found.values()) for name, part in found.items()}


def _step(parts: Parts, speeds: str) -> list[str]:
    """Return how fast an arm is, what its step yields and takes, and what faster drafting would give."""
    # Plain decoding's steps take more than its passes: what it does beside them counts too.
    part, plain_steps = shares(parts), parts.tokens * parts.rows / parts.speedup
    told = [
        f"{speeds[0].upper()}{speeds[1:]}: a step emits {parts.tokens:.2f} tokens a row and takes {plain_steps:.2f} "
        "times as long as a plain step.",
        ", ".join(f"{name} takes {share:.0%}" for name, share in part.items()).capitalize() + " of a step.",
    ]
    if part["drafting"] >= _NOTICEABLE:
        twice, free = (replace(parts, drafting=share * parts.drafting).speedup for share in (0.5, 0.0))
        told.append(f"A draft twice as fast would give {twice:.2f}x, a free one {free:.2f}x.")
    if parts.rows < 1 - _NOTICEABLE:
        told.append(f"Rows end at different times: {parts.rows:.0%} as many are in flight as with plain decoding.")
    return told


def _affordable(parts: Parts) -> str:
    """Return what drafting may cost if a losing arm is to break even with the tokens a step that it has."""
    # What steps with as many tokens leave of plain decoding's time.
    allowed = parts.tokens * parts.rows * (1 + parts.plain) - parts.scoring - parts.rest
    if allowed <= 0:
        return "With these tokens a step not even a free draft breaks even: scoring and the rest cost more."
    share = allowed / parts.drafting
    return f"To break even, drafting may take {share:.0%} of the time that it takes."


def _break_even(parts: Parts, stats: Stats) -> str:
    """Return which tokens a step, and which acceptance of chains, would let a losing arm break even."""
    needed = parts.tokens / parts.speedup
    told = f"At these costs a step must emit {needed:.2f} tokens to break even, in place of {parts.tokens:.2f}"
    if not drafts_chains(stats):
        return f"{told}."
    alpha = acceptance_for(stats, needed)
    if alpha is None:
        drafted = stats.num_drafted / stats.num_steps
        return f"{told}: more than its drafts, {drafted:.2f} tokens a step on average, can yield."
    return f"{told}: an acceptance of {alpha:.2f} by theory, in place of {stats.acceptance_rate:.2f}."


def _length(run: Run, arm: str) -> list[str]:
    """Return the best of the lengths that the run tells about, and what is in its way."""
    if not (found := predictions(run, arm)):
        return []
    most, told = best(found), []
    if len(found) > 1:
        which, more = f"Of drafts of up to {max(found)} tokens", list[str]()
        if not _has_fixed_length(run.outcome, arm):
            which = "Of limits on its own drafts, whose lengths vary"
            more = ["Drafts of a fixed length are others: nothing here is said of them."]
        told = [f"{which}, {most} would be best: {found[most].speedup:.2f}x by theory.", *more]
    why = obstacle(found)
    return told if why is None else [*told, f"Why none gains {WORTH - 1:.0%}: {why}."]


def sentences(run: Run, arm: str) -> list[str]:
    """Return why a timed run's arm of ours is as fast as it is.

    Args:
        run: of models.
        arm: not plain decoding.
    """
    stats = run.drafting[arm]
    if not stats.num_drafted:
        return ["It drafted nothing: its steps are plain decoding's, with what it took to find no draft."]
    parts, told = Parts.of(run.plain, stats), []
    if parts.speedup < 1:
        # What is in the way of chains says what drafting them may cost.
        told += [_break_even(parts, stats), *([] if drafts_chains(stats) else [_affordable(parts)])]
    return [*_step(parts, speed_words(run.outcome, arm)), *told, *cause_sentences(run.outcome, arm), *_length(run, arm)]
