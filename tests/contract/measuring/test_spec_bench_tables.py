"""Spec-Bench's tables and answer files, every figure worked out by hand from written steps and seconds."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from experiments.harness.findings.summary import heading_of
from experiments.harness.run_outcome import Outcome
from experiments.report.one_run import further
from experiments.report.runs import Run
from experiments.spec_bench.spec_bench_tables import (
    LEGENDS,
    MT_BENCH,
    by_task,
    question_speeds,
    spec_bench_ratio,
    tables_of,
    write_answers,
)
from specdec.stats.report.intervals import bootstrap_ratio, paired_ratio
from specdec.stats.report.printout import text_of
from tests.support.runs.units import arm_of, draw_of, unit_of

DECODING, WHOLE = "Spec-Bench, decoding alone", "Spec-Bench, end to end"


def alone(tokens: list[int], seconds: float = 10.0) -> list[tuple[list[int], float]]:
    """Return steps of one token each."""
    return [([token], seconds) for token in tokens]


def three_questions() -> list[dict[str, Any]]:
    """Return a conversation of two turns, whose second begins with a loop of 5, and two questions of one turn."""
    return [
        unit_of(0, "writing", "81", {
            "plain": arm_of(alone([1, 2, 3, 4]), 6.0),
            "x": arm_of([([1, 2], 10.0), ([3, 4], 10.0)], 6.0),
        }),
        unit_of(1, "qa", "240", {
            "plain": arm_of(alone([7, 8]), 4.0),
            "x": arm_of(alone([7, 8], 20.0), 4.0),
        }),
        unit_of(2, "coding", "130", {
            "plain": arm_of(alone([1, 2, 3]), 5.0),
            "x": arm_of([([1, 2, 3], 10.0)], 5.0),
        }),
        unit_of(3, "writing", "81, turn 2", {
            "plain": arm_of(alone([5, 5, 5, 9]), 10.0),
            "x": arm_of([([5, 5], 10.0), ([5, 9], 10.0)], 10.0),
        }, began=0),
    ]  # fmt: skip


def rows_of(title: str, entries: list[dict[str, Any]], arms: tuple[str, ...] = ("plain", "x")) -> list[dict[str, Any]]:
    (rows,) = (one.rows for one in tables_of(Outcome(arms, entries)) if one.title == title)
    return rows


def test_decoding_alone_by_hand() -> None:
    mt_bench, qa, overall = rows_of(DECODING, three_questions())
    # Plain decoding takes 40 + 40 + 30 s without prompts, the arm 20 + 20 + 10 s. Outside loops the conversation has 5
    # tokens in 50 s, the arm 4 of them in 20 s (its step 5 9 holds a token of the loop); 3 in 30 s and in 10 s.
    assert mt_bench == {
        "task": "mt_bench",
        "arm": "x",
        "decoding alone": f"{110 / 50:.2f} (n = 2)",
        "no loops": f"{(50 / 5 * 4 + 30) / (20 + 10):.2f} (n = 2)",
        "in loops": f"{3 / 11:.1%}",
        "accepted": f"{11 / 5:.2f} (n = 2)",
        "bootstrap": f"{110 / 50:.2f} (n = 2)",
        "tokens/s": pytest.approx(11 / 50),
        "plain": pytest.approx(11 / 110),
    }
    assert (qa["task"], qa["decoding alone"], qa["no loops"]) == ("qa", "0.50 (n = 1)", "0.50 (n = 1)")
    assert (qa["in loops"], qa["accepted"]) == ("0.0%", "1.00 (n = 1)")
    assert (qa["tokens/s"], qa["plain"]) == (pytest.approx(2 / 40), pytest.approx(2 / 20))
    assert (overall["task"], overall["decoding alone"]) == ("overall", f"{130 / 90:.2f} (n = 3)")
    assert overall["no loops"] == f"{(70 + 20) / (30 + 40):.2f} (n = 3)"
    assert (overall["in loops"], overall["accepted"]) == (f"{3 / 13:.1%}", f"{13 / 7:.2f} (n = 3)")


def test_eight_categories_are_one_task_and_tasks_stand_in_their_order() -> None:
    kinds = ["rag", "of my own", *MT_BENCH, "math_reasoning", "qa", "summarization", "translation"]
    arms = {"plain": arm_of(alone([1]), 1.0), "x": arm_of(alone([1]), 1.0)}
    rows = rows_of(DECODING, [unit_of(i, kind, str(i), arms) for i, kind in enumerate(kinds)])
    tasks = ["mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag", "of my own", "overall"]
    assert [row["task"] for row in rows] == tasks
    assert rows[0]["decoding alone"] == "1.00 [1.00, 1.00]"
    one_kind = rows_of(WHOLE, [unit_of(i, "chat", str(i), arms) for i in range(2)])
    assert [row["task"] for row in one_kind] == ["overall"]


def seeded(num_prompts: int) -> list[dict[str, Any]]:
    """Return prompts of one turn with the seeds 3 and 4; the arm's speed lies in the prompt, not in the seed."""
    entries = []
    for seed in (3, 4):
        for place in range(num_prompts):
            arms = {
                "plain": draw_of(alone([1, 2, 3, 4][: 2 + place % 3]), 2.0),
                "x": draw_of(alone([4, 3, 2, 1][: 4 - place % 2], 10.0 / (1 + 0.2 * place)), 2.0),
            }
            number, name = len(entries), f"{place}" if seed == 3 else f"{place}, seed 4"
            began = {} if seed == 3 else {"began": place}
            entries.append(unit_of(number, "qa", name, arms, seed=seed, **began))
    return entries


def test_seeds_of_a_prompt_are_pooled_in_its_cluster() -> None:
    outcome = Outcome(("plain", "x"), seeded(5))
    assert [len(cluster) for cluster in outcome.clusters()] == [2] * 5
    # The same prompts with a seed alone: the second adds nothing that these do not tell, so that bounds stay.
    once = Outcome(("plain", "x"), seeded(5)[:5])
    for found, wanted in (
        (outcome.decoding_speedup("x"), once.decoding_speedup("x")),
        (outcome.speedup("x"), once.speedup("x")),
        (spec_bench_ratio(outcome, "x"), spec_bench_ratio(once, "x")),
    ):
        assert found is not None
        assert wanted is not None
        assert (found.value, found.low, found.high) == pytest.approx((wanted.value, wanted.low, wanted.high))
        assert found.num_units == 5
    as_many = [10.0 * (4 - place % 2) for place in range(5)]
    own = [10.0 / (1 + 0.2 * place) * (4 - place % 2) for place in range(5)]
    by_hand, found = paired_ratio(as_many, own), outcome.decoding_speedup("x")
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((by_hand.value, by_hand.low, by_hand.high))
    assert rows_of(DECODING, seeded(5))[0]["bootstrap"] == str(bootstrap_ratio(as_many, own)) != str(by_hand)
    (row,) = rows_of(WHOLE, seeded(5))
    assert (row["questions"], row["answers"]) == (5, 10)


def test_speeds_of_seeds_are_averaged_question_by_question() -> None:
    entries = [
        unit_of(0, "qa", "1", {"x": draw_of(alone([1, 2]), 0.0)}, seed=0),
        unit_of(1, "qa", "1, seed 1", {"x": draw_of([([1, 2, 3], 10.0)], 0.0)}, seed=1, began=0),
        unit_of(2, "qa", "1, turn 2", {"x": draw_of([([1, 2], 5.0)], 0.0)}, seed=0, began=0),
    ]
    # Seed 0: 4 tokens of two turns in 25 s; seed 1: 3 in 10 s.
    assert question_speeds(Outcome(("x",), entries), "x") == [pytest.approx((4 / 25 + 3 / 10) / 2)]


def test_batches_have_no_time_of_a_question() -> None:
    entries = three_questions()
    entries[1]["prompts"].append("241")
    rows = rows_of(WHOLE, entries)
    assert [row["Spec-Bench ratio"] for row in rows] == [None] * 3
    assert (rows[0]["tokens/s"], rows[1]["questions"]) == (None, 2)


def test_a_peer_has_no_figures_without_prompts() -> None:
    entries = three_questions()
    for entry in entries:
        entry["arms"]["x"] |= {"stats": None, "records": {}}
    assert set(rows_of(DECODING, entries)[0].values()) == {"mt_bench", "x", None}
    assert rows_of(WHOLE, entries)[0]["end to end"] == f"{131 / 71:.2f} (n = 2)"


def test_a_terminal_shows_the_five_columns_that_matter() -> None:
    steps = [([1, 2], 10.0), ([3], 2000.0)]
    arms = {name: arm_of(steps, 2.0) for name in ("plain", "transformers:assisted")}
    entries = [unit_of(i, "math_reasoning", str(i), arms) for i in range(100)]
    entries.append(unit_of(100, "qa", "100", arms))
    for one in tables_of(Outcome(tuple(arms), entries), per_category=8):
        assert max(map(len, text_of([one], Console(width=80, force_terminal=False)).splitlines())) <= 80
        text = text_of([one], Console(width=100, force_terminal=False))
        (head,) = (line for line in text.splitlines() if line.startswith("task "))
        assert tuple(re.split(" {2,}", head)) == one.brief
        assert one.note == "Asked: the first of each category of the file, up to 8."
        assert one.explanation.endswith(("all tokens.", "over questions."))
        assert tables_of(Outcome(tuple(arms), entries))[0].note == ""


def test_the_heading_says_what_intervals_are_clustered_by() -> None:
    run = {"oracle": "code", "temperature": 1.0, "rule": "coupled", "batch_size": 1, "max_new_tokens": 4}
    arguments = {**run, "seeds": [3, 4]}
    facts = {"arguments": arguments, "device": "cpu", "backend": "native", "threads": 1, "chat": {"template": {}}}
    assert "clustered by prompt, its 2 seeds together" in heading_of(Outcome(("plain", "x"), seeded(5)), facts)
    facts["arguments"] = {**arguments, "seeds": None}
    assert "clustered by prompt (" in heading_of(Outcome(("plain", "x"), seeded(5)[:5]), facts)
    assert "clustered by conversation (" in heading_of(Outcome(("plain", "x"), three_questions()), facts)


@pytest.mark.parametrize(
    ("rows", "asked", "head", "fill"),
    [
        ((3, 3), {}, "batch 3, ", None),
        ((2, 2, 2), {"num_prompts": 6}, "batch 3 (2 rows in flight), ", "with --num-prompts 9, or a multiple"),
        ((3, 1), {}, "batch 3 (1 to 3 rows in flight), ", "with --num-prompts 6, or a multiple"),
        ((3, 1), {"num_prompts": 5}, "batch 3 (1 to 3 rows in flight), ", "--prompts has too few, 4 in all; give more"),
        ((3, 1), {"num_prompts": None}, "batch 3 (1 to 3 rows in flight), ", "--prompts has too few, 4 in all; give"),
        ((2, 2), {"num_prompts": None, "per_category": 2}, "batch 3 (2 rows in flight), ", "with --per-category 3, or"),
    ],
)
def test_the_heading_says_how_many_rows_were_in_flight_and_how_to_fill_batches(rows, asked, head, fill) -> None:
    entries = seeded(len(rows))[: len(rows)]
    for number, (entry, count) in enumerate(zip(entries, rows, strict=True)):
        entry |= {"kind": f"kind {number}", "prompts": [f"{number}.{row}" for row in range(count)]}
    run = {"oracle": "code", "temperature": 0.0, "batch_size": 3, "max_new_tokens": 4, **asked}
    facts = {"arguments": run, "device": "cpu", "backend": "native", "threads": 1, "chat": {"template": None}}
    outcome = Outcome(("plain", "x"), entries)
    told = [heading_of(outcome, facts), heading_of(outcome, {"arguments": {**run, "oracle": "recorded:texts.jsonl"}})]
    for heading in told:
        assert head in heading
        assert fill in heading if fill else "a batch is of" not in heading.lower()


def test_the_page_has_the_legends_of_both_tables() -> None:
    entries = three_questions()
    summary = {title: rows_of(title, entries) for title in (DECODING, WHOLE)}
    tables = further(Run(Path(), "", "", summary, Outcome(("plain", "x"), entries)), [])
    assert [(one.title, one.legend) for one in tables] == list(LEGENDS.items())
    assert tables[0].rows == summary[DECODING]


TOKENIZER = Tokenizer(WordLevel({f"w{number}": number for number in range(10)}, unk_token="w0"))


def line_of(path: Path, number: int) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(path.read_text(encoding="utf-8").splitlines()[number])
    return line


def test_a_line_holds_what_spec_bench_writes(tmp_path: Path) -> None:
    assert (
        write_answers(Outcome(("plain", "x"), three_questions()), tmp_path, TOKENIZER, [], "m") == tmp_path / "answers"
    )
    found = line_of(tmp_path / "answers" / "x.jsonl", 0)
    assert found.pop("tstamp") > 0
    assert found == {
        "question_id": 81,
        "category": "writing",
        "answer_id": "x-81",
        "model_id": "m-x",
        "choices": [
            {
                "index": 0,
                "turns": ["w1 w2 w3 w4", "w5 w5 w5 w9"],
                "decoding_steps": [2, 2],
                "new_tokens": [4, 4],
                "wall_time": [26.0, 30.0],
                "accept_lengths": [2, 2, 2, 2],
            }
        ],
    }
    ids = [line_of(tmp_path / "answers" / f"{arm}.jsonl", n)["question_id"] for arm in ("plain", "x") for n in range(3)]
    assert ids == [81, 130, 240] * 2
    assert line_of(tmp_path / "answers" / "plain.jsonl", 1)["choices"][0]["accept_lengths"] == [1, 1, 1]


def as_speed_py(own: Path, base: Path, task: str) -> tuple[float, float, float, float]:
    """Return what the script prints of a task: both speeds, their ratio, the mean accepted tokens.

    An arm's tokens are the counts of its file. Plain decoding's text is encoded, and one id, of a BOS, taken off.
    """
    speeds: list[list[float]] = [[], []]
    accepted: list[int] = []
    for found, path in zip(speeds, (own, base), strict=True):
        for line in path.read_text(encoding="utf-8").splitlines():
            answer = json.loads(line)
            asked = task == "overall" or answer["category"] in (MT_BENCH if task == "mt_bench" else (task,))
            if not asked:
                continue
            (choice,) = answer["choices"]
            with_bos = [["<s>", *text.split()] for text in choice["turns"]]
            counts = choice["new_tokens"] if path == own else [len(ids) - 1 for ids in with_bos]
            found.append(sum(counts) / sum(choice["wall_time"]))
            accepted += choice["accept_lengths"] if path == own else []
    means = [sum(one) / len(one) for one in speeds]
    return means[0], means[1], means[0] / means[1], sum(accepted) / len(accepted)


def as_equal_py(one: Path, other: Path) -> bool:
    """Tell whether the answers of two files are the same, line by line."""
    texts = (
        [json.loads(line)["choices"][0]["turns"] for line in path.read_text().splitlines()] for path in (one, other)
    )
    return all(a == b for a, b in zip(*texts, strict=True))


@pytest.mark.parametrize("task", ["mt_bench", "qa", "overall"])
def test_the_scripts_read_our_figures_from_the_files(tmp_path: Path, task: str) -> None:
    entries = three_questions()
    write_answers(Outcome(("plain", "x"), entries), tmp_path, TOKENIZER, [], "m")
    own, base = tmp_path / "answers" / "x.jsonl", tmp_path / "answers" / "plain.jsonl"
    speed, plain, ratio, accepted = as_speed_py(own, base, task)
    whole, decoding = ({row["task"]: row for row in rows_of(name, entries)}[task] for name in (WHOLE, DECODING))
    assert (whole["tokens/s"], whole["plain"]) == (pytest.approx(speed), pytest.approx(plain))
    assert whole["Spec-Bench ratio"].split()[0] == f"{ratio:.2f}"
    assert decoding["accepted"].split()[0] == f"{accepted:.2f}"


def test_the_scripts_tell_other_answers_apart(tmp_path: Path) -> None:
    own, base = tmp_path / "answers" / "x.jsonl", tmp_path / "answers" / "plain.jsonl"
    write_answers(Outcome(("plain", "x"), three_questions()), tmp_path, TOKENIZER, [], "m")
    assert as_equal_py(own, base)
    entries = three_questions()
    entries[3]["arms"]["x"] = arm_of([([5, 5], 10.0), ([5, 8], 10.0)], 10.0)
    write_answers(Outcome(("plain", "x"), entries), tmp_path, TOKENIZER, [], "m")
    assert not as_equal_py(own, base)


def test_answers_end_before_stops_and_the_end_of_text(tmp_path: Path) -> None:
    arms = {
        "plain": arm_of(alone([1, 2, 3, 4]), 1.0, finish_reasons=[["stop"]]),
        "x": arm_of(alone([1, 2, 9]), 1.0, rounds=2, finish_reasons=[["eos"]] * 2),
    }
    write_answers(Outcome(("plain", "x"), [unit_of(0, "qa", "a", arms)]), tmp_path, TOKENIZER, ["w3"], "m")
    plain, own = (line_of(tmp_path / "answers" / f"{arm}.jsonl", 0) for arm in ("plain", "x"))
    assert plain["choices"][0]["turns"] == own["choices"][0]["turns"] == ["w1 w2"]
    assert (plain["question_id"], plain["choices"][0]["new_tokens"]) == ("a", [4])
    # Of two rounds the tokens and steps of one.
    assert (own["choices"][0]["new_tokens"], own["choices"][0]["accept_lengths"]) == ([3], [1, 1, 1])


def test_every_seed_has_files_of_its_own_and_peers_have_none(tmp_path: Path) -> None:
    entries = seeded(2)
    for entry in entries:
        entry["arms"]["peer"] = {**entry["arms"]["x"], "stats": None, "records": {}}
    write_answers(Outcome(("plain", "x", "peer"), entries), tmp_path, TOKENIZER, [], "m")
    found = sorted(str(path.relative_to(tmp_path / "answers")) for path in tmp_path.rglob("*.jsonl"))
    assert found == [f"seed-{seed}/{arm}.jsonl" for seed in (3, 4) for arm in ("plain", "x")]
    for seed in (3, 4):
        path = tmp_path / "answers" / f"seed-{seed}" / "x.jsonl"
        assert [line_of(path, n)["question_id"] for n in range(2)] == [0, 1]
        assert line_of(path, 1)["choices"][0]["new_tokens"] == [3]


def test_by_task_keeps_failures() -> None:
    failed = {"unit": 0, "kind": "stem", "prompts": ["1"], "error": "ValueError: too long"}
    assert by_task(Outcome(("plain",), [failed])).problems() == ["prompts ['1']: ValueError: too long"]


def test_tables_need_an_arm() -> None:
    assert tables_of(Outcome(("plain",), three_questions())) == []
