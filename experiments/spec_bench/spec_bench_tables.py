"""Spec-Bench's tables: decoding alone, and end to end, by task and arm."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from experiments.findings.legends import OWN_TABLES, SPEC_BENCH_ALONE, SPEC_BENCH_WHOLE
from experiments.harness.arms import PLAIN
from experiments.harness.run_outcome import ALL, DECODING_ALONE, END_TO_END, Outcome, decoding_seconds
from specdec.stats import Table
from specdec.stats.report import Interval, bootstrap_ratio, paired_ratio

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
# As Spec-Bench's speed.py calls its tasks, in its order; of the file's categories eight are one task.
TASKS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
OVERALL = "overall"
_OF_BOTH = ("task", "arm")


def by_task(outcome: Outcome) -> Outcome:
    """Return an outcome whose kinds are Spec-Bench's tasks, and categories that it does not have."""
    entries = [{**entry, "kind": TASKS[0] if entry["kind"] in MT_BENCH else entry["kind"]} for entry in outcome.entries]
    return Outcome(outcome.arms, entries)


def question_speeds(outcome: Outcome, arm: str, kind: str = ALL) -> list[float] | None:
    """Return the tokens per second of each question, of several seeds the mean.

    That is the tokens of all its turns over their wall time, prefill included; of several rounds their mean time.

    Returns:
        A number for each cluster of ``outcome``; None if several prompts were decoded together.
    """
    if any(len(entry["prompts"]) > 1 for entry in outcome.done):
        return None
    found = []
    for cluster in outcome.clusters(kind):
        by_seed: dict[int | None, list[dict[str, Any]]] = {}
        for entry in cluster:
            by_seed.setdefault(entry.get("seed"), []).append(entry["arms"][arm])
        found.append(fmean(_speed(turns) for turns in by_seed.values()))
    return found


def _speed(turns: Sequence[dict[str, Any]]) -> float:
    seconds = sum(fmean(turn["seconds"]) for turn in turns)
    return float(sum(turn["num_tokens"] for turn in turns) / seconds)


def spec_bench_ratio(outcome: Outcome, arm: str, kind: str = ALL) -> Interval | None:
    """Return the mean over questions of an arm's tokens per second over that of plain decoding's, with an interval.

    None if several prompts were decoded together.

    Source: evaluation/speed.py of hemingkx/Spec-Bench.
    Deviations: tokens are counted by ids in both; the script encodes plain decoding's text again to count them.
    """
    own, plain = question_speeds(outcome, arm, kind), question_speeds(outcome, PLAIN, kind)
    return None if own is None or plain is None else paired_ratio(own, plain)


def decoding_row(outcome: Outcome, arm: str, kind: str) -> dict[str, Any]:
    """Return how fast an arm decodes, prefill left out: in all, outside loops, and how many tokens a pass emits."""
    found, share = outcome.decoding_speedup(arm, kind), outcome.loop_share(arm, kind)
    if found is None:
        return dict.fromkeys((DECODING_ALONE, "no loops", "in loops", "accepted", "bootstrap", "tokens/s", "plain"))
    return {
        DECODING_ALONE: str(found),
        "no loops": str(outcome.speedup_outside(arm, kind) or "-"),
        "in loops": None if share is None else f"{share:.1%}",
        "accepted": str(outcome.block_efficiency(arm, kind)),
        "bootstrap": str(outcome.decoding_speedup(arm, kind, method=bootstrap_ratio)),
        "tokens/s": _decoding_speed(outcome, arm, kind),
        "plain": _decoding_speed(outcome, PLAIN, kind),
    }


def _decoding_speed(outcome: Outcome, arm: str, kind: str) -> float:
    stats = outcome.stats(arm, kind)
    assert stats is not None
    return 1 / decoding_seconds(stats)


def end_to_end_row(outcome: Outcome, arm: str, kind: str) -> dict[str, Any]:
    """Return how fast an arm is, prefill included: our ratio of times, and Spec-Bench's ratio of speeds."""
    ratio = spec_bench_ratio(outcome, arm, kind)
    own, plain = question_speeds(outcome, arm, kind), question_speeds(outcome, PLAIN, kind)
    kept = [entry for entry in outcome.done if kind in (ALL, entry["kind"])]
    return {
        END_TO_END: str(outcome.speedup(arm, kind)),
        "Spec-Bench ratio": None if ratio is None else str(ratio),
        "questions": sum(len(entry["prompts"]) for entry in kept if "began" not in entry),
        "answers": sum(len(entry["prompts"]) for entry in kept),
        "bootstrap": str(outcome.speedup(arm, kind, method=bootstrap_ratio)),
        "tokens/s": own and fmean(own),
        "plain": plain and fmean(plain),
    }


def tables_of(outcome: Outcome, per_category: int | None = None) -> list[Table]:
    """Return both tables: a row for every task and arm beside plain decoding, and for all tasks together.

    Args:
        outcome: of the experiment.
        per_category: of the command line.
    """
    grouped, arms = by_task(outcome), [arm for arm in outcome.arms if arm != PLAIN]
    if not arms:
        return []
    tasks = [task for task in TASKS if task in grouped.kinds]
    tasks += [kind for kind in grouped.kinds if kind not in tasks]
    kinds = {task: task for task in tasks if len(tasks) > 1} | {OVERALL: ALL}
    asked = "" if per_category is None else f"Asked: the first of each category of the file, up to {per_category}."
    found = []
    for title, row, brief in (
        (SPEC_BENCH_ALONE, decoding_row, (DECODING_ALONE, "no loops", "accepted")),
        (SPEC_BENCH_WHOLE, end_to_end_row, (END_TO_END, "Spec-Bench ratio", "answers")),
    ):
        rows = [{"task": task, "arm": arm, **row(grouped, arm, kind)} for task, kind in kinds.items() for arm in arms]
        found.append(Table(title, rows, asked, title, (*_OF_BOTH, *brief), OWN_TABLES[title]))
    return found
