"""What an experiment found: tables, reasons, and the files that hold them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.harness.arms import PLAIN
from experiments.harness.disturbance import disturbance_warning
from experiments.harness.draw_checks import e_value_text
from experiments.harness.findings.causes import cause_table
from experiments.harness.findings.run_tables import against_table, speed_table, work_table
from experiments.harness.findings.step_columns import acceptance_table, device_table, reason_table, stage_table
from experiments.harness.models import record_file
from experiments.harness.recorded_runs import AssumedCosts, heading, worth
from experiments.harness.rule_choice import way_of
from experiments.harness.run_outcome import ALL, DECODING_ALONE, Outcome, speed_words
from specdec.prompts import without_bars
from specdec.stats import Stats, Table, count_of
from specdec.stats.report import FEWEST_UNITS, Interval, Shown, bootstrap_ratio, latex_of, markdown_of, verdict
from specdec.system import write_whole

_RATIOS = (
    "block_efficiency",
    "block_efficiency_full",
    "acceptance_rate",
    "draft_utilisation",
    "verify_rate",
    "acceptance_by_position",
    "survival_by_position",
    "acceptance_by_rank",
    "acceptance_by_source",
    "time_to_first_token",
)
UNTIMED = "no model ran, so that times mean nothing."
# The tables of a run as documents, in its folder.
_DOCUMENTS = {"tables.md": markdown_of, "tables.tex": latex_of}

Tables = Callable[[Outcome], Sequence[Table]]


def _summary_without_times(outcome: Outcome, arm: str) -> dict[str, Any]:
    """Return what is kept of an arm on recorded text: nothing in it is a time."""
    stats, same = outcome.stats(arm), outcome.check_results(arm)
    assert stats is not None
    counts = {name: value for name, value in stats.as_dict().items() if "seconds" not in name and name != "stages"}
    ratios = {name: getattr(stats, name) for name in _RATIOS if name != "time_to_first_token"}
    own = {"identical": sum(same), "prompts": len(same), **outcome.performers(arm), "tree": outcome.tree(arm)}
    return {**own, **ratios, "stats": counts}


def _checks(outcome: Outcome, arm: str) -> dict[str, Any]:
    """Return how many prompts passed the check of their outputs; for draws, also the evidence against their law."""
    passed, law = outcome.check_results(arm), outcome.law(arm)
    if outcome.repeats_plain(arm):
        return {"identical": sum(passed), "prompts": len(passed)}
    evidence = None if law is None else {**asdict(law), "e_value": law.e_value}
    return {"sound": sum(passed), "prompts": len(passed), "law": evidence}


def _arm_summary(outcome: Outcome, arm: str) -> dict[str, Any]:
    stats = outcome.stats(arm)
    whole = {kind: vars(outcome.speedup(arm, kind)) for kind in (*outcome.kinds, ALL)}
    alone = {kind: outcome.decoding_speedup(arm, kind) for kind in (*outcome.kinds, ALL)}
    summary = {
        "decoding_alone": None if stats is None else {kind: vars(found) for kind, found in alone.items()},
        "end_to_end": whole,
        "tokens_per_second": outcome.tokens_per_second(arm),
        **_checks(outcome, arm),
        "claim": outcome.done[0]["arms"][arm]["claim"],
        "rule": outcome.done[0]["arms"][arm]["rule"],
        **outcome.performers(arm),
        "tree": outcome.tree(arm),
        "calibrations": outcome.calibrations(arm),
    }
    if stats is None:
        return summary
    return {**summary, **{name: getattr(stats, name) for name in _RATIOS}, "stats": stats.as_dict()}


def phase_times(outcome: Outcome) -> dict[str, dict[str, float]]:
    """Return arm -> phase -> milliseconds per emitted token, of every arm of ours."""
    found = {arm: outcome.stats(arm) for arm in outcome.arms}
    return {
        arm: {phase: 1e3 * seconds / stats.num_emitted for phase, seconds in stats.seconds.items()}
        for arm, stats in found.items()
        if stats is not None
    }


def by_kind(outcome: Outcome, name: str) -> dict[str, dict[str, Interval]]:
    """Return arm -> kind -> one of the two ratios over plain decoding, of every arm that has it; all kinds first."""
    ratio = outcome.decoding_speedup if name == DECODING_ALONE else outcome.speedup
    kinds = (ALL, *(outcome.kinds if len(outcome.kinds) > 1 else ()))
    found = {arm: {kind: one for kind in kinds if (one := ratio(arm, kind))} for arm in outcome.arms}
    return {arm: intervals for arm, intervals in found.items() if intervals and arm != PLAIN}


def headline(outcome: Outcome, timed: bool) -> list[str]:
    """Return in two sentences what a run compared, which arm is best, and whether the outputs are as they should be.

    A third says so if other work seems to have disturbed its times.

    Args:
        outcome: of the run.
        timed: whether its times mean something: a model ran, not recorded text.
    """
    others = [arm for arm in outcome.arms if arm != PLAIN]
    if not others:
        return ["Plain decoding ran alone: there is nothing to compare."]
    if timed:
        warning = disturbance_warning(outcome)
        return [*conclusion(outcome).splitlines(), *([] if warning is None else [f"{warning}."])]
    best = max(others, key=lambda arm: outcome.block_efficiency(arm).value)
    found = outcome.block_efficiency(best)
    return [f"{best} makes the most of a verify pass, {found} tokens a row; {UNTIMED}", agreement(outcome)]


def conclusion(outcome: Outcome) -> str:
    """Return in two sentences, a line each, what a run of models says."""
    count, outputs = sum(len(own[0]["prompts"]) for own in outcome.clusters()), len(outcome.check_results(PLAIN))
    on = f" on {count} prompt{'s' if count > 1 else ''}" + (f" ({outputs} outputs an arm)" if outputs > count else "")
    speedups = {arm: outcome.speedup(arm) for arm in outcome.arms if arm != PLAIN}
    best = max(speedups, key=lambda arm: speedups[arm].value)
    told = [arm for arm in speedups if verdict(speedups[arm], outcome.speedup(arm, method=bootstrap_ratio)) == "faster"]
    if not told:
        first = (
            f"No arm is told apart from plain decoding as faster{on}; the best is {best}: {speed_words(outcome, best)}."
        )
    elif best in told:
        first = f"{best}, the best of {len(speedups)}{on}, is faster than plain decoding: {speed_words(outcome, best)}."
    else:
        sure = max(told, key=lambda arm: speedups[arm].value)
        first = (
            f"{sure} is faster than plain decoding{on}: {speed_words(outcome, sure)}; {best} is not told apart from "
            f"it: {speed_words(outcome, best)}."
        )
    return f"{first}\n{agreement(outcome)}"


def agreement(outcome: Outcome) -> str:
    """Return how many outputs passed their check, as a sentence."""
    passed = [one for arm in outcome.arms for one in outcome.check_results(arm)]
    counts = f"{sum(passed)} of {len(passed)} outputs, of {len(outcome.arms)} arms,"
    if not outcome.has_draws:
        others = "" if all(passed) else f"; {len(passed) - sum(passed)} are OTHERS"
        return f"{counts} are plain decoding's, token for token{others}."
    largest = max((law.e_value for arm in outcome.arms if (law := outcome.law(arm)) is not None), default=None)
    against = (
        "none was held against that law"
        if largest is None
        else f"the largest e-value against that law is {e_value_text(largest)}"
    )
    return (
        f"{counts} have their length and come again with their seed; they are draws of one law, not one text, and "
        f"{against}."
    )


def tables_of(outcome: Outcome, facts: Mapping[str, Any]) -> list[Table]:
    """Return the tables that all experiments have.

    Args:
        outcome: of the experiment.
        facts: the provenance.
    """
    arguments = facts["arguments"]
    drafts = [acceptance_table(outcome), work_table(outcome)]
    if record_file(arguments) is not None:
        return [worth(outcome, AssumedCosts.of(arguments)), *drafts]
    against = arguments.get("against")
    tables = [
        speed_table(outcome, facts.get("refused", {})),
        None if against is None else against_table(outcome, against),
        reason_table(outcome),
        cause_table(outcome),
        stage_table(outcome),
        device_table(outcome),
        *drafts,
    ]
    return [one for one in tables if one is not None]


def write_records(outcome: Outcome, path: Path, timed: bool = True) -> None:
    """Write the records of all arms as one parquet file: one row per arm, round, prompt and step; with times or not."""
    columns: dict[str, list[Any]] = {}
    for entry in outcome.done:
        for arm, kept in entry["arms"].items():
            if kept["records"]:
                prompts = [entry["prompts"][i] for i in kept["records"]["request"]]
                own = {"arm": [arm] * len(prompts), "kind": [entry["kind"]] * len(prompts), "prompt": prompts}
                which = zip(kept["records"]["round"], kept["records"]["request"], strict=True)
                own["finish_reason"] = [kept["finish_reasons"][number][i] for number, i in which]
                for name, values in {**own, **kept["records"]}.items():
                    columns.setdefault(name, []).extend(values)
    columns = {name: values for name, values in columns.items() if timed or not name.startswith("seconds")}
    with without_bars() as datasets:
        datasets.Dataset.from_dict(columns).to_parquet(str(path))


def write(
    outcome: Outcome, folder: Path, facts: dict[str, Any], problems: Sequence[str], tables: Tables | None = None
) -> list[Shown]:
    """Write summary, records and tables into a folder and return what a terminal is to show.

    Args:
        outcome: of the experiment.
        folder: exists.
        facts: the provenance.
        problems: what went wrong.
        tables: makes further tables, with keys.

    Returns:
        The conclusion, what the tables are of, and the tables; nothing if no unit was measured.
    """
    summary: dict[str, Any] = {"provenance": facts, "problems": [*problems]}
    parts: list[Shown] = []
    if outcome.done:
        timed, found = record_file(facts["arguments"]) is None, tables_of(outcome, facts)
        summary["arms"] = {
            arm: (_arm_summary if timed else _summary_without_times)(outcome, arm) for arm in outcome.arms
        }
        write_records(outcome, folder / "records.parquet", timed)
        found += tables(outcome) if tables else []
        summary |= {one.key: one.rows for one in found if one.key}
        parts = ["\n".join(headline(outcome, timed)), heading_of(outcome, facts), *found]
        for name, document in _DOCUMENTS.items():
            write_whole(folder / name, document(parts) + "\n")
    write_whole(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    return parts


def heading_of(outcome: Outcome, facts: Mapping[str, Any]) -> str:
    """Return what the tables of a run are of."""
    chosen = facts["arguments"]
    batches = _batches(outcome, chosen)
    if record_file(chosen) is not None:
        return heading(outcome, chosen, batches)
    memory = outcome.stats(PLAIN) or Stats()
    weights = f"{chosen['weights']} weights" if chosen.get("weights") else "weights"
    products = ", products of whole numbers" if chosen.get("arithmetic") == "int8" else ""
    sizes = (
        f"{weights} {(memory.weight_bytes or 0) / 1e6:.1f} MB, cache {(memory.cache_bytes or 0) / 1e6:.1f} MB{products}"
    )
    seeds = chosen.get("seeds") or [0]
    are_prompts = len(outcome.clusters()) * len(seeds) >= len(outcome.done)
    one = "prompt" if are_prompts else "text" if facts["chat"]["template"] is None else "conversation"
    one += f", its {len(seeds)} seeds together" if len(seeds) > 1 else ""
    unit = "round" if outcome.by_rounds else one if chosen["batch_size"] == 1 else "batch"
    return (
        f"Speed-up over plain decoding on the same prompts, {way_of(chosen)}, {batches[0]}, "
        f"{chosen['max_new_tokens']} new tokens; 95 % intervals clustered by {unit} (delta method). "
        f"{_few(outcome, unit)}{batches[1]}"
        f"{facts['device']}, {facts['backend']} passes, threads {facts['threads']}; {sizes}."
    )


def _batches(outcome: Outcome, chosen: Mapping[str, Any]) -> tuple[str, str]:
    """Return the batch size that was asked for, with the rows really in flight, and how to fill batches; "": all are.

    Batches of later turns need no filling: some conversations are over by then.
    """
    asked, sizes = chosen["batch_size"], [len(entry["prompts"]) for entry in outcome.done]
    least, most = min(sizes, default=asked), max(sizes, default=asked)
    span = f"{least} to " if least < most else ""
    rows = f" ({span}{count_of(most, 'row')} in flight)" if least < asked else ""
    firsts = [len(cluster[0]["prompts"]) for cluster in outcome.clusters()]
    if all(count == asked for count in firsts):
        return f"batch {asked}{rows}", ""
    most, per_category = chosen.get("num_prompts", 0), chosen.get("per_category")
    if per_category is None and (most is None or sum(firsts) < most):
        how = f"--prompts has too few, {sum(firsts)} in all; give more, or a smaller --batch-size"
    elif per_category is None:
        how = f"with --num-prompts {asked * len(outcome.kinds)}, or a multiple, if the kinds are equally large"
    else:
        how = f"with --per-category {asked}, or a multiple"
    fill = f"A batch is of one kind of prompt, and full if there are {asked} of the kind: {how}. "
    return f"batch {asked}{rows}", fill


def _few(outcome: Outcome, unit: str) -> str:
    """Return what to do if there are too few units for intervals; nothing if there are enough."""
    if outcome.by_rounds:
        return (
            "There are too few prompts or batches for intervals over them: these hold for the very prompts measured. "
        )
    if len(outcome.clusters()) >= FEWEST_UNITS:
        return ""
    return (
        f"No intervals: fewer than {FEWEST_UNITS} units of one {unit}. Give more prompts, or --repeats {FEWEST_UNITS} "
        "to pair whole rounds. "
    )
