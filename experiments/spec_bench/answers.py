"""Answers as files that the scripts of Spec-Bench read (``evaluation/speed.py`` and ``evaluation/equal.py``)."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tokenizers import Tokenizer

from experiments.harness.draw_checks import texts_in
from experiments.harness.run_outcome import Outcome
from experiments.harness.tracing import slugs_of
from specdec.requests import cut_text
from specdec.system import write_whole

FOLDER = "answers"


def write_answers(
    outcome: Outcome, folder: Path, tokenizer: Tokenizer, stop_strings: Sequence[str], model: str
) -> Path:
    """Write a file for each arm of ours, and return their folder.

    A line is a question with the answers to its turns. Lines are in the order of the questions' numbers, so that line i
    of every file is of one question. With several seeds each has a folder of its own.

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
    """Return the number and category of each question, and the entries of its turns with one seed, by number."""
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

    Of several rounds, which have the same tokens and steps, the mean time.
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
    """Return how many tokens each step of the first round emitted, the recovered or bonus token among them."""
    both = zip(records["round"], records["tokens"], strict=True)
    return [len(tokens) for number, tokens in both if number == 0]
