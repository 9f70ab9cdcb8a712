"""Spec-Bench's questions from a file in its form: which are asked, and what a run writes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from experiments.spec_bench import __main__ as spec_bench
from specdec.prompts import NamedPrompt
from tests.support.runs.experiments import summary_of, the_folder, write_rows

CATEGORIES = ("writing", "coding", "qa", "rag", "of my own", "stem", "math")
# It does not ship: it may lie beside the checkout, or beside a folder of several.
PLACES = [parent / "shared" / "data" / "spec_bench" / "question.jsonl" for parent in Path(__file__).parents]
PUBLISHED = next(filter(Path.is_file, PLACES), None)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Return a file of two questions of each category."""
    rows = [
        {"question_id": number, "category": category, "turns": [f"def f{number}(x):\n    return f(", "Go on."]}
        for number, category in enumerate(CATEGORIES * 2)
    ]
    return write_rows(tmp_path / "question.jsonl", rows)


def test_a_run_writes_both_tables_and_the_answers(checkpoints, questions, tmp_path, capsys):
    argv = ["--file", str(questions), "--oracle", str(checkpoints / "target"), "--out", str(tmp_path / "runs")]
    asked = ["--max-new-tokens", "6", "--per-category", "1", "--strategies", "prompt_lookup", "lookahead"]
    assert spec_bench.main([*argv, *asked]) == 0
    folder, summary = the_folder(tmp_path / "runs"), summary_of(tmp_path / "runs")
    decoding, whole = (summary[f"Spec-Bench, {part}"] for part in ("decoding alone", "end to end"))
    tasks = ["mt_bench", "qa", "rag", "of my own", "overall"]
    assert [(row["task"], row["arm"]) for row in decoding] == [
        (task, arm) for task in tasks for arm in ("prompt_lookup", "lookahead")
    ]
    assert [row["questions"] for row in whole[::2]] == [4, 1, 1, 1, 7]
    assert "[" in whole[-1]["end to end"] or "wide" in whole[-1]["end to end"]  # on a busy machine
    out, err = capsys.readouterr()
    assert out.index("Spec-Bench, decoding alone") < out.index("Spec-Bench, end to end")
    assert "Asked: the first of each category of the file, up to 1." in out
    kinds = "writing, coding, qa, rag, of my own, stem, math"
    told = " ".join(out.split())
    assert f"--wide adds bootstrap, no loops, {kinds}." in told  # of speed
    assert f"--wide adds {kinds}, bootstrap, " in told  # of work
    assert "first turns only: prompts are raw text here" in err
    assert f"speed.py and equal.py: {folder / 'answers'}" in " ".join(out.split())
    texts = {path.stem: answers_of(path) for path in (folder / "answers").iterdir()}
    assert texts.keys() == {"plain", "prompt-lookup", "lookahead"}
    assert list(texts["plain"]) == [*range(7)]
    assert texts["plain"] == texts["prompt-lookup"] == texts["lookahead"]


def answers_of(path: Path) -> dict[Any, list[str]]:
    """Return the texts of a file of answers by question."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["question_id"]: line["choices"][0]["turns"] for line in lines}


def test_a_file_is_asked_for(capsys):
    with pytest.raises(SystemExit):
        spec_bench.main([])
    assert "--file" in capsys.readouterr().err


def test_the_help_has_the_defaults_of_this_experiment(capsys):
    with pytest.raises(SystemExit):
        spec_bench.main(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    for words in ("how many, spread over their kinds (all)", "per prompt (512)", "the first of raw text (auto)"):
        assert words in told


def test_all_questions_are_asked_with_512_tokens_unless_told_otherwise(questions, monkeypatch):
    kept: list[dict[str, Any]] = []
    monkeypatch.setattr(spec_bench, "run", lambda plan, **_: kept.append(plan.arguments))
    spec_bench.main(["--file", str(questions)])
    (arguments,) = kept
    assert (arguments["turns"], arguments["max_new_tokens"], arguments["num_prompts"]) == ("auto", 512, None)
    assert len(spec_bench.choose(arguments)) == 14
    assert len(spec_bench.choose({**arguments, "num_prompts": 5})) == 5
    with pytest.raises(ValueError, match="--per-category and --num-prompts both say how many"):
        spec_bench.choose({**arguments, "num_prompts": 5, "per_category": 1})


def test_the_first_of_each_category_are_taken_in_the_order_of_the_file():
    prompts = [NamedPrompt(str(number), kind, "x") for number, kind in enumerate("abacbaa")]
    assert [prompt.name for prompt in spec_bench.first_of_each(prompts, 2)] == ["0", "1", "2", "3", "4"]
    assert spec_bench.first_of_each(prompts, 9) == prompts


@pytest.mark.skipif(PUBLISHED is None, reason="Spec-Bench's question.jsonl does not lie in shared/data/spec_bench")
def test_the_published_questions():
    arguments = {"prompts": str(PUBLISHED), "column": None, "oracle": "code", "num_prompts": None, "per_category": None}
    prompts = spec_bench.choose(arguments)
    assert len(prompts) == 480
    assert sum(1 + len(prompt.later_turns) for prompt in prompts) == 560
    few = Counter(prompt.kind for prompt in spec_bench.choose({**arguments, "per_category": 8}))
    assert set(few.values()) == {8}
    assert len(few) == 13


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seeds", "0", "1"], "--seeds: greedy output depends on no seed"),
        (["--seeds", "1", "1", "--temperature", "1"], "--seeds 1 1: a seed stands twice"),
    ],
)
def test_seeds_that_mean_nothing_are_refused(questions, options, words):
    with pytest.raises(SystemExit, match=words):
        spec_bench.main(["--file", str(questions), *options])


def test_why_there_are_no_answer_files(tmp_path):
    arguments = {"batch_size": 2, "oracle": "code"}
    assert "a batch has one wall time" in "".join(map(str, spec_bench.report_answers(arguments, None, tmp_path)))  # type: ignore[arg-type]
    arguments = {"batch_size": 1, "oracle": str(tmp_path)}
    assert "has no tokenizer" in "".join(map(str, spec_bench.report_answers(arguments, None, tmp_path)))  # type: ignore[arg-type]
