"""The tables of a run that say how fast its arms are and what they do in a pass, each with what its columns mean."""

import textwrap
from collections.abc import Mapping
from typing import Any

from experiments.harness.arms import PLAIN
from experiments.harness.draw_checks import EVERY, TILT
from experiments.harness.run_outcome import ALL, DECODING_ALONE, END_TO_END, SPEEDS, Outcome, check_cells, speed_cells
from specdec.stats import Table
from specdec.stats.report import (
    WIDEST_PRINTED,
    bootstrap_ratio,
    paired_ratio,
    units_to_tell,
    verdict,
)

# Characters of a table's cell that says why an arm refused.
_WORDS = 96
_SPEED_NOTE = (
    "Ratios with 95 % intervals; n: the number of units, if they are too few for an interval; wide: an interval whose "
    f"bounds lie more than a factor of {WIDEST_PRINTED:g} apart."
)
_SAME_TIMES = {**SPEEDS, DECODING_ALONE: f"{SPEEDS[DECODING_ALONE]} (-: a peer does not report its prefill)"}
_DRAWN_TIMES = {**_SAME_TIMES, END_TO_END: f"{SPEEDS[END_TO_END]}; every arm draws a text of its own"}
_SPEED = {
    "bootstrap": f"{END_TO_END} over all prompts, with the interval of the cluster bootstrap",
    "no loops": "plain decoding's time per token over the arm's, prefill left out, in steps whose tokens are in no "
    "loop (a block of up to 16 tokens, three times or more in a row)",
}
_SAME_CHECK = {"identical": "prompts whose output ids are plain decoding's"}
_DRAWN_CHECKS = {
    "checked": "in place of equal ids: prompts whose output has the length asked for, or ends with its text, and is "
    "the same in every round (with one round, the first prompts are decoded once more)",
    "law e": "how many times likelier the tokens are under the oracle's law to the power of 1 -+ "
    f"{TILT:g}, which flattens or sharpens it, than under the law itself, over every {EVERY}th prompt or batch; if the "
    "tokens are drawn from the law, this reaches x with a probability of at most 1/x",
}
_WORK = {
    ALL: "tokens emitted per verify pass of a row (plain decoding: 1), with 95 % intervals clustered by prompt or "
    "batch; columns of kinds likewise",
    "bootstrap": "the same with the interval of the bootstrap",
    "no loops": "the same outside loops",
    "drafted": "nodes of a pass that are verified, the pending token not counted",
    "scouts": "nodes that are scored, never verified",
    "extra nodes": "drafted nodes and scouts together",
    "drafter": "who drafted: the source, or its model in one call of compiled code (native)",
    "judge": "who judged: the rule, or the compiled judge that it declares (native)",
}


def columns_of_kinds(outcome: Outcome) -> dict[str, str]:
    """Return the column of each kind of prompt, if there are several: its name, or another if tables use that one."""
    kinds = outcome.kinds if len(outcome.kinds) > 1 else ()
    own = {"arm", "tokens/s", *SPEEDS, *_SPEED, *_SAME_CHECK, *_DRAWN_CHECKS, *_WORK}
    return {kind: f"kind {kind}" if kind in own else kind for kind in kinds}


def speed_table(outcome: Outcome, refused: Mapping[str, str]) -> Table:
    """Return how fast each arm is, both ratios, with intervals, and how many outputs passed their check.

    A peer or a strategy that refused has a row with the words of its refusal, shortened if they are long.
    """
    rows, kinds = [], columns_of_kinds(outcome)
    for arm in outcome.arms:
        row: dict[str, Any] = {"arm": arm, "tokens/s": round(outcome.tokens_per_second(arm), 1)}
        row |= speed_cells(outcome, arm)
        bootstrap = outcome.speedup(arm, method=bootstrap_ratio)
        row["bootstrap"] = "1" if arm == PLAIN else str(bootstrap)
        row["no loops"] = "1" if arm == PLAIN else str(outcome.speedup_outside(arm) or "-")
        row |= {name: "1" if arm == PLAIN else str(outcome.speedup(arm, kind)) for kind, name in kinds.items()}
        rows.append({**row, **check_cells(outcome, arm)})
    nothing, last = dict.fromkeys(rows[0]), [*rows[0]][-1]
    short = {name: textwrap.shorten(words, _WORDS, placeholder=" ...") for name, words in refused.items()}
    rows += [{**nothing, "arm": name, last: f"refused: {words}"} for name, words in short.items()]
    of_kinds = {", ".join(kinds.values()): f"{END_TO_END}, for the prompts of one kind"} if kinds else {}
    if outcome.has_draws:
        brief, times, checks = (DECODING_ALONE, END_TO_END, "checked", "law e"), _DRAWN_TIMES, _DRAWN_CHECKS
    else:
        brief, times, checks = ("tokens/s", DECODING_ALONE, END_TO_END, "identical"), _SAME_TIMES, _SAME_CHECK
    return Table("Speed", rows, _SPEED_NOTE, "", ("arm", *brief), {**times, **_SPEED, **of_kinds, **checks})


def against_rows(outcome: Outcome, against: str) -> list[dict[str, Any]]:
    """Return both ratios of every arm over one of them, a verdict, and how many units would give one.

    The verdict goes by end to end, with both of its intervals.
    """
    rows = []
    for arm in outcome.arms:
        if arm == against:
            continue
        delta, bootstrap = (outcome.speedup(arm, ALL, against, method) for method in (paired_ratio, bootstrap_ratio))
        found, more = verdict(delta, bootstrap), units_to_tell(delta, bootstrap)
        speed = {**speed_cells(outcome, arm, against=against), "bootstrap": str(bootstrap)}
        rows.append({"arm": arm, **speed, "verdict": found, "to tell": more if found == "not told apart" else None})
    return rows


def against_table(outcome: Outcome, against: str) -> Table | None:
    """Return ``against_rows`` as a table; None: no other arm ran."""
    rows, of_plain = against_rows(outcome, against), "plain decoding"
    if not rows:
        return None
    note = (
        f"Pairs with {against}, on the same prompts. The verdict goes by {END_TO_END}: both of its intervals, the "
        "bootstrap's too, must agree."
    )
    legend = {
        **{name: is_.replace(of_plain, of_plain if against == PLAIN else against) for name, is_ in SPEEDS.items()},
        "bootstrap": f"{END_TO_END} with the interval of the cluster bootstrap",
        "to tell": "how many units would tell the arms apart with even odds, if the ratio is as measured",
    }
    brief = ("arm", DECODING_ALONE, END_TO_END, "verdict", "to tell")
    return Table(f"Speed over {against}", rows, note, "against", brief, legend)


def work_table(outcome: Outcome) -> Table:
    """Return the work of every arm of ours: tokens per pass by kind of prompt, with intervals, and nodes per pass."""
    rows = []
    kinds = {**columns_of_kinds(outcome), ALL: ALL}
    for arm in outcome.arms:
        stats = outcome.stats(arm)
        if stats is not None:
            drafted, scouts = stats.num_drafted / stats.num_steps, stats.num_scouts / stats.num_steps
            nodes = {"drafted": drafted, "scouts": scouts, "extra nodes": drafted + scouts}
            found = {name: str(outcome.block_efficiency(arm, kind)) for kind, name in kinds.items()}
            found["bootstrap"] = str(outcome.block_efficiency(arm, method=bootstrap_ratio))
            found["no loops"] = str(outcome.block_efficiency_outside(arm) or "-")
            performers = outcome.performers(arm)
            rows.append({"arm": arm, **found, **nodes, **{did: performers[did] for did in ("drafter", "judge")}})
    return Table("Work", rows, "", "work", ("arm", ALL, "no loops", "extra nodes", "judge"), _WORK)
