"""Spec-Bench's tables by task and arm, and answers as files that its own scripts read."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tokenizers import Tokenizer

from experiments.harness.arms import PLAIN
from experiments.harness.draw_checks import texts_in
from experiments.harness.run_outcome import ALL, DECODING_ALONE, END_TO_END, SPEEDS, Outcome, decoding_seconds
from experiments.harness.tracing import slugs_of
from specdec.requests import cut_text
from specdec.stats import Table
from specdec.stats.report import Interval, bootstrap_ratio, paired_ratio
from specdec.system import write_whole

FOLDER = "answers"


def write_answers(
    outcome: Outcome, folder: Path, tokenizer: Tokenizer, stop_strings: Sequence[str], model: str
) -> Path:
    """Write a file for each arm of ours, and return their folder.

    A line is a question with the answers to its turns. Lines are in the order of the questions' numbers, so line i of
    every file is about the same question. If there are several seeds, each has its own folder.

    Args:
        outcome: of units of one prompt each.
        folder: of the run.
        tokenizer: of the oracle.
        stop_strings: that end an answer.
        model: name of the oracle.
    """
    place, arms = folder / FOLDER, [arm for arm in outcome.arms if outcome.stats(arm) is not None]
    seeds = dict.fromkeys(entry.get("seed") for entry in outcome.done)
    for seed in seeds:
        inner = place / f"seed-{seed}" if len(seeds) > 1 else place
        inner.mkdir(parents=True, exist_ok=True)
        for arm, slug in slugs_of(arms).items():
            rows = [
                {**question, "answer_id": f"{arm}-{question['question_id']}", "model_id": f"{model}-{arm}",
                 "choices": [_choice(turns, arm, tokenizer, stop_strings)], "tstamp": time.time()}
                for question, turns in _questions(outcome, seed)
            ]  # fmt: skip
            write_whole(inner / f"{slug}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return place


def _questions(outcome: Outcome, seed: int | None) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return number and category of each question and the entries of its turns with one seed, ordered by number."""
    found = []
    for cluster in outcome.clusters():
        name, turns = cluster[0]["prompts"][0], [entry for entry in cluster if entry.get("seed") == seed]
        number = int(name) if name.isdecimal() else name
        if turns:
            found.append(({"question_id": number, "category": cluster[0]["kind"]}, turns))
    return sorted(found, key=lambda one: (isinstance(one[0]["question_id"], str), one[0]["question_id"]))


def _choice(
    turns: Sequence[dict[str, Any]], arm: str, tokenizer: Tokenizer, stop_strings: Sequence[str]
) -> dict[str, Any]:
    """Return what an arm answered to a question: texts, steps, tokens and seconds by turn, tokens of every step.

    Several rounds have the same tokens and steps; their mean time is given.
    """
    kept = [entry["arms"][arm] for entry in turns]
    outputs = [texts_in(one["records"], 1)[0] for one in kept]
    ends = [one["finish_reasons"][0][0] for one in kept]
    texts = [cut_text(tokenizer, *pair) for pair in zip(outputs, [stop_strings] * len(ends), ends, strict=True)]
    steps = [_step_lengths(one["records"]) for one in kept]
    return {
        "index": 0,
        "turns": [text.strip() for text in texts],
        "decoding_steps": [len(one) for one in steps],
        "new_tokens": [len(output) for output in outputs],
        "wall_time": [fmean(one["seconds"]) for one in kept],
        "accept_lengths": [length for one in steps for length in one],
    }


def _step_lengths(records: dict[str, list[Any]]) -> list[int]:
    """Return how many tokens each step of the first round emitted, the recovered or bonus token included."""
    both = zip(records["round"], records["tokens"], strict=True)
    return [len(tokens) for number, tokens in both if number == 0]


MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
# As Spec-Bench's speed.py calls its tasks, in its order; of the file's categories eight are one task.
TASKS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
OVERALL = "overall"
_OF_BOTH = ("task", "arm")
_ALONE, _WHOLE = f"Spec-Bench, {DECODING_ALONE}", f"Spec-Bench, {END_TO_END}"
_INTERVALS = "95 % intervals clustered by question, its turns and seeds together"
# What their columns mean, by the titles of the tables.
LEGENDS = {
    _ALONE: {
        DECODING_ALONE: f"{SPEEDS[DECODING_ALONE]}, with {_INTERVALS}",
        "no loops": "the same, in steps whose tokens are in no loop",
        "in loops": "the share of the arm's tokens that are in loops",
        "accepted": "mean accepted tokens as Spec-Bench counts them: all that a verify pass emits, the recovered or "
        "bonus token included",
        "bootstrap": f"{DECODING_ALONE} with the interval of the cluster bootstrap",
        "tokens/s, plain": "the arm's speed and plain decoding's, over all tokens",
    },
    _WHOLE: {
        END_TO_END: f"{SPEEDS[END_TO_END]}, with {_INTERVALS}",
        "Spec-Bench ratio": "as its speed.py computes it: mean tokens per second of a question, over plain decoding's "
        "mean, so that a question of few tokens counts as much as one of many (-: in batches); clustered likewise",
        "answers": "over all turns and seeds",
        "bootstrap": f"{END_TO_END} with the interval of the cluster bootstrap",
        "tokens/s, plain": "the arm's speed and plain decoding's, means over questions",
    },
}


def by_task(outcome: Outcome) -> Outcome:
    """Return an outcome whose kinds are Spec-Bench's tasks, and any categories that Spec-Bench does not have."""
    entries = [{**entry, "kind": TASKS[0] if entry["kind"] in MT_BENCH else entry["kind"]} for entry in outcome.entries]
    return Outcome(outcome.arms, entries)


def question_speeds(outcome: Outcome, arm: str, kind: str = ALL) -> list[float] | None:
    """Return the tokens per second of each question; the mean, if there are several seeds.

    That is the tokens of all its turns over their wall time (the mean of several rounds), prefill included.

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
    """Return an arm's mean tokens per second of a question over plain decoding's mean, with an interval.

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
    kept = outcome.of_kind(kind)
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
        (_ALONE, decoding_row, (DECODING_ALONE, "no loops", "accepted")),
        (_WHOLE, end_to_end_row, (END_TO_END, "Spec-Bench ratio", "answers")),
    ):
        rows = [{"task": task, "arm": arm, **row(grouped, arm, kind)} for task, kind in kinds.items() for arm in arms]
        found.append(Table(title, rows, asked, title, (*_OF_BOTH, *brief), LEGENDS[title]))
    return found
