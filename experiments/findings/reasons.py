"""Why an arm is as fast as it is: the parts of its speed-up, and what they predict."""

from dataclasses import replace
from typing import Any

from experiments.advise.advice_parts import Parts
from experiments.harness.arms import PLAIN
from experiments.harness.run_outcome import DECODING_ALONE, Outcome
from specdec.stats import Stats


def reason(plain: Stats, stats: Stats) -> dict[str, Any]:
    """Return why an arm is as fast as it is: the parts of its speed-up, and what they predict.

    A step of the arm costs v + propose / T + other / T, one of plain decoding 1 + its own other / T, with T the time of
    a scoring pass of plain decoding in this run. A step emits tau tokens for each of its rows, of which there are fewer
    than plain decoding has, where rows end at different times. Prefill is left out.
    """
    parts, once = Parts.of(plain, stats), plain.seconds_per_call("score") or float("nan")
    expected = stats.theoretical_block_efficiency()
    return {
        "tau": parts.tokens,
        "tau full": stats.block_efficiency_full,
        "alpha": stats.acceptance_rate,
        "used": stats.draft_utilisation,
        "nodes": stats.num_scored_nodes / stats.target_calls,
        "T ms": 1e3 * once,
        "v": parts.scoring,
        "c": stats.draft_cost_ratio(once),
        "propose/T": parts.drafting,
        "other/T": parts.rest,
        "rows": parts.rows,
        "predicted": parts.speedup,
        "from alpha": None if expected is None else replace(parts, tokens=expected).speedup,
    }


def reason_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the reasons of every arm of ours, and the ratio that they explain."""
    plain, rows = outcome.stats(PLAIN), []
    assert plain is not None
    for arm in outcome.arms:
        stats, alone = outcome.stats(arm), outcome.decoding_speedup(arm)
        if stats is not None and alone is not None:
            rows.append({"arm": arm, **reason(plain, stats), DECODING_ALONE: alone.value})
    return rows
