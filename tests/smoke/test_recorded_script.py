"""The experiments on recorded texts, from their command lines: tables without times, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from experiments import exactness, staged, threshold
from experiments.harness import running as harness
from experiments.harness.arguments import fingerprint
from experiments.studies import trees
from oracles import RecordedText
from tests.support.runs.experiments import TEXT, read_json, write_rows

pytestmark = pytest.mark.usefixtures("documents")

RAN = [
    "plain", "small_transformer", "other_vocabulary", "tree", "ngram", "prompt_lookup", "suffix_automaton", "merged",
    "cascade", "staged",
]  # fmt: skip


@pytest.fixture
def records(tmp_path: Path) -> Path:
    rows = [{"id": f"p{i}", "kind": "ab"[i % 2], "prompt": TEXT * (i + 1), "completion": TEXT[i:]} for i in range(4)]
    (tmp_path / "text.py").write_text(TEXT * 3, encoding="utf-8")
    return write_rows(tmp_path / "records.jsonl", rows)


def common(records: Path) -> list[str]:
    return ["--oracle", f"recorded:{records}", "--out", str(records.parent / "out"), "--max-new-tokens", "12"]


def summary_of(records: Path) -> dict[str, Any]:
    (folder,) = (records.parent / "out").iterdir()
    documents = {"tables.md", "tables.tex"}
    assert {path.name for path in folder.iterdir()} == {"records.parquet", "summary.json", "units.jsonl"} | documents
    columns = Dataset.from_parquet(str(folder / "records.parquet")).column_names
    assert [name for name in columns if "seconds" in name] == []
    return read_json(folder / "summary.json")


def test_compare_runs_what_needs_no_model_and_shows_no_time(records, capsys):
    text = str(records.parent / "text.py")
    trained = [part for name in ("ngram", "merged", "cascade", "staged") for part in (f"--{name}-train-on", text)]
    assert harness.script("compare", "", [*common(records), *trained]) == 0
    printed, told = capsys.readouterr()
    for name in ("early_exit", "quantized", "lookahead", "threshold", "medusa"):
        assert f"left out on recorded text: {name}: " in told
    failed = "A prompt whose output is not its record fails, and is in no table"
    for word in ("tau", "alpha", "lower bound", "No speed-up: no model ran", failed):
        assert word in printed
    for word in ("tokens/s", "speed-up |", "T ms", "wall time", "decoding alone", "end to end"):
        assert word not in printed
    summary = summary_of(records)
    assert list(summary["arms"]) == RAN
    assert all(arm["identical"] == 4 for arm in summary["arms"].values())
    assert "seconds" not in json.dumps(summary["arms"])
    assert "per_second" not in json.dumps(summary)
    rows = {row["arm"]: row for row in summary["worth"]}
    assert rows["plain"]["tau"] == 1
    assert rows["prompt_lookup"]["tau"] > 1.5
    assert list(rows["plain"]) == ["arm", "tau", "tau full", "alpha", "used", "nodes", "drafted", "identical"]


def test_a_speedup_is_shown_at_stated_costs_and_for_the_arms_that_they_are_stated_of(records):
    argv = [*common(records), "--strategies", "prompt_lookup", "small_transformer", "--num-prompts", "2"]
    assert harness.script("compare", "", [*argv, "--draft-cost", "prompt_lookup=0.02", "--width-cost", "0.1"]) == 0
    rows = {row["arm"]: row for row in summary_of(records)["worth"]}
    row = rows["prompt_lookup"]
    assert row["v"] == pytest.approx(1 + 0.1 * (row["nodes"] - 1))
    assert row["speed-up"] == pytest.approx(row["tau"] / (row["v"] + 0.02 * row["drafted"]))
    assert (rows["plain"]["speed-up"], rows["small_transformer"]["speed-up"]) == (1, None)


def test_strategies_have_it_by_themselves_and_results_depend_on_the_file(records):
    argv = [*common(records), "--batch-size", "2", "--draft-cost", "0.1", "--width-cost", "1,1,1.5"]
    assert harness.script("prompt_lookup", "", argv) == 0
    assert summary_of(records)["worth"][1]["speed-up"] > 0
    arguments = {"oracle": f"recorded:{records}"}
    before = fingerprint(arguments, [])
    records.write_text(records.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert fingerprint(arguments, []) != before


def test_staged_runs_beside_its_model(records):
    assert staged.main([*common(records), "--inner", "prompt_lookup", "--num-prompts", "1"]) == 0
    assert list(summary_of(records)["arms"]) == ["plain", "small_transformer", "staged"]


def test_an_output_that_is_not_the_record_fails(records, monkeypatch, capsys):
    right = RecordedText.output_of

    def wrong(self: RecordedText, prompt: Any, name: str = "prompt") -> Any:
        output = right(self, prompt, name)
        return output[::-1] if name == "p2" else output

    monkeypatch.setattr(RecordedText, "output_of", wrong)
    assert harness.script("compare", "", [*common(records), "--strategies", "prompt_lookup"]) == 1
    assert "the output of p2 is not its record" in capsys.readouterr().err


REFUSED = {
    "lookahead": (["--strategies", "lookahead"], "lookahead reads the oracle's logits, and recorded text is no model"),
    "early_exit": (["--strategies", "prompt_lookup", "early_exit"], "early_exit drafts with the oracle's own layers"),
    "quantized": (["--strategies", "quantized"], "quantized drafts with the oracle's own weights"),
    "threshold": (["--strategies", "threshold"], "threshold measures the times of the oracle's passes"),
    "peer": (["--strategies", "ngram", "--peer", "transformers"], "--peer transformers: it needs the model itself"),
    "bitwise": (["--bitwise"], "--bitwise is of the oracle's own passes, and recorded text has none"),
    "arithmetic": (["--arithmetic", "int8"], "--arithmetic is of the oracle's own passes"),
    "temperature": (["--temperature", "0.5"], "--temperature: recorded text has no laws to draw from; use 0"),
    "against": (["--against", ""], "--against pairs wall times"),
    "one cost": (["--draft-cost", "0.1"], "a speed-up needs both --draft-cost C and --width-cost V"),
    "other cost": (["--width-cost", "0.1"], "a speed-up needs both"),
    "no number": (["--draft-cost", "x", "--width-cost", "0.1"], "--draft-cost: 'x' is no number of at least 0"),
    "negative": (["--draft-cost", "0.1", "--width-cost=-1"], "--width-cost: '-1' is no number of at least 0"),
    "falling": (["--draft-cost", "0.1", "--width-cost", "1,2,1"], "--width-cost: costs must be finite, begin at 1"),
    "no arm": (["--draft-cost", "lookup=0.1", "--width-cost", "0"], "--draft-cost: 'lookup' is none of the arms: "),
    "column": (["--record-column", "reference"], "not 'reference'; name one as output_column .--column names"),
    "tokenizer": (["--tokenizer", "nowhere"], "'nowhere' has no tokenizer"),
    "another tokenizer": (["--tokenizer", "arithmetic"], "row 0: the tokenizer cannot read its prompt: "),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_answer_is_refused_by_name(options, message, records):
    with pytest.raises(SystemExit, match=message):
        harness.script("compare", "", [*common(records), *options])


@pytest.mark.parametrize("main", [trees.main, exactness.main, threshold.main])
def test_experiments_that_need_a_model_refuse_it(main, records):
    with pytest.raises(SystemExit, match=r"needs a model|is no model"):
        main(common(records)[:4])


@pytest.mark.parametrize("option", ["--record-column", "--tokenizer", "--draft-cost", "--width-cost"])
def test_its_options_are_refused_with_a_model(option, tmp_path):
    with pytest.raises(SystemExit, match=f"{option} belongs to --oracle recorded:FILE"):
        harness.script("compare", "", ["--strategies", "prompt_lookup", option, "1", "--out", str(tmp_path)])


def test_prompts_without_a_record_fail_by_name(records, capsys):
    rows = [{"id": "known", "prompt": TEXT}, {"id": "unknown", "prompt": "import os\n"}]
    other = write_rows(records.parent / "other.jsonl", rows)
    assert (
        harness.script("compare", "", [*common(records), "--prompts", str(other), "--strategies", "prompt_lookup"]) == 1
    )
    err = capsys.readouterr().err
    assert "prompts ['unknown']: selects no record" in err
    assert "known']" in err
