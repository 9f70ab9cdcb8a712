"""``--trace``: the nodes of an experiment's first prompts, of every arm that drafts, whatever interrupts it."""

import html
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import drafts
import oracles
from experiments.harness import running as harness
from experiments.harness import tracing
from experiments.harness.arms import EngineArm
from experiments.harness.tracing import Tracing, slugs_of
from experiments.report.__main__ import write_page
from experiments.report.page import page
from experiments.report.traces import trace_sections
from experiments.strategies import STRATEGIES
from specdec.traces import NodeRecords
from tests.support.pairwise import first_of
from tests.support.runs.experiments import all_own, common, own, summary_of, the_folder

RUN = "run-1"
LOOKUPS = ["--strategies", "prompt_lookup", "lookahead"]


def timed_tokens(folder: Path, arm: str) -> dict[str, list[int]]:
    """Return the tokens of each prompt as the records of the timed rounds have them."""
    from pyarrow.parquet import read_table

    found: dict[str, list[int]] = {}
    for row in read_table(folder / "records.parquet", columns=["arm", "round", "prompt", "tokens"]).to_pylist():
        if row["arm"] == arm and row["round"] == 0:
            found.setdefault(row["prompt"], []).extend(row["tokens"])
    return found


@pytest.mark.parametrize("temperature", first_of("0.9", "0"))
def test_every_strategy_is_traced_and_emits_what_it_emitted(temperature, everything, checkpoints, tmp_path):
    folder, _ = everything
    if temperature == "0":
        argv = [*common(checkpoints, tmp_path), "--batch-size", "2", "--trace", "3"]
        assert harness.script("compare", "", [*argv, *all_own(checkpoints, STRATEGIES)]) == 0
        folder = the_folder(tmp_path)
    sections = trace_sections(folder, RUN)
    assert [section.title for section in sections] == [f"Trace: {name}" for name in STRATEGIES]
    for name, section in zip(STRATEGIES, sections, strict=True):
        records = NodeRecords(folder / "nodes" / name.replace("_", "-"))
        timed = timed_tokens(folder, name)
        assert records.tokens == {i: timed[f"p{i}"] for i in range(3)}
        assert [prompt["name"] for prompt in section.data["prompts"]] == ["p0", "p1", "p2"]
        assert "than in the timed rounds" not in section.body
        assert section.name == f"{RUN}-{section.data['link']}"
    branching = {name: section.data["parent"] for name, section in zip(STRATEGIES, sections, strict=True)}
    assert any(parents[i] == parents[i - 1] for parents in [branching["tree"]] for i in range(1, len(parents)))
    assert page("all", sections).count("class TraceViewer") == 1


class Interrupted(BaseException):
    """What no part of the program catches."""


def test_an_interrupted_trace_goes_on_and_measures_nothing_again(checkpoints, tmp_path, monkeypatch):
    argv = [*common(checkpoints, tmp_path), *LOOKUPS, "--trace", "2"]
    working, asked = Tracing.record, []

    def dying(self: Tracing, arm: EngineArm, folder: Path) -> NodeRecords:
        asked.append(arm.name)
        if arm.name == "lookahead":
            raise Interrupted
        return working(self, arm, folder)

    monkeypatch.setattr(Tracing, "record", dying)
    with pytest.raises(Interrupted):
        harness.script("compare", "", argv)
    folder = the_folder(tmp_path)
    (section,) = trace_sections(folder, RUN)
    assert "No trace of lookahead (not finished)." in section.body
    assert all((folder / name).exists() for name in ("summary.json", "tables.md", "records.parquet"))
    part = folder / "nodes" / "prompt-lookup" / "nodes-000000.parquet"
    written = part.stat().st_mtime_ns
    monkeypatch.setattr(Tracing, "record", working)
    monkeypatch.setattr(harness, "measure", lambda *arguments: pytest.fail("a unit was measured again"))
    monkeypatch.setattr(harness, "WARM_UP_TOKENS", 1)
    assert harness.script("compare", "", argv) == 0
    assert asked == ["prompt_lookup", "lookahead"]
    assert part.stat().st_mtime_ns == written
    assert len(trace_sections(folder, RUN)) == 2


def test_a_run_that_begins_afresh_has_no_trace_of_the_last_one(checkpoints, tmp_path):
    argv = [*common(checkpoints, tmp_path), "--strategies", "prompt_lookup"]
    assert harness.script("compare", "", [*argv, "--trace", "2"]) == 0
    folder = the_folder(tmp_path)
    assert len(trace_sections(folder, RUN)[0].data["prompts"]) == 2
    assert harness.script("compare", "", [*argv, "--trace", "9"]) == 0
    assert len(trace_sections(folder, RUN)[0].data["prompts"]) == 4  # all that there are
    assert harness.script("compare", "", argv) == 0
    assert the_folder(tmp_path) == folder
    assert not (folder / "nodes").exists()


def test_another_number_of_prompts_drops_what_an_interrupted_run_recorded(checkpoints, tmp_path, monkeypatch):
    argv, kept = [*common(checkpoints, tmp_path), *LOOKUPS], []

    def dying(*arguments: Any) -> None:
        kept.append(1)
        raise Interrupted

    monkeypatch.setattr(tracing, "_trace", dying)
    with pytest.raises(Interrupted):
        harness.script("compare", "", [*argv, "--trace", "2"])
    monkeypatch.undo()
    assert harness.script("compare", "", [*argv, "--trace", "1"]) == 0
    assert [len(section.data["prompts"]) for section in trace_sections(the_folder(tmp_path), RUN)] == [1, 1]


def shorter(self: Tracing, arm: EngineArm, folder: Path) -> NodeRecords:
    """Decode a token less than was asked for."""
    plan = replace(self.study.plan, arguments={**self.study.plan.arguments, "max_new_tokens": 9})
    return RECORD(replace(self, study=replace(self.study, plan=plan)), arm, folder)


RECORD = Tracing.record


def claim_all(claim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every arm claim this."""
    run = EngineArm.run
    monkeypatch.setattr(EngineArm, "run", lambda *arguments: replace(run(*arguments), claim=claim))


@pytest.mark.parametrize(
    ("claim", "status", "words"),
    [
        ("exact", 1, "although the arm is claimed to be exact."),
        ("exact up to numerics", 0, "as the arm's claim allows (exact up to numerics)."),
    ],
)
def test_other_tokens_than_in_the_timed_rounds_are_an_error_if_they_are_claimed_to_be_exact(
    claim, status, words, checkpoints, tmp_path, monkeypatch, capsys
):
    claim_all(claim, monkeypatch)
    monkeypatch.setattr(Tracing, "record", shorter)
    argv = [*common(checkpoints, tmp_path), "--strategies", "prompt_lookup", "--trace", "1"]
    assert harness.script("compare", "", argv) == status
    said = capsys.readouterr().err
    assert "the trace of prompt_lookup: other tokens than in the timed rounds on prompt p0" in said
    assert ("FAILED" in said) == bool(status)
    (section,) = trace_sections(the_folder(tmp_path), RUN)
    assert html.escape(f"Other tokens than in the timed rounds on p0, {words}") in section.body


def test_a_refuted_trace_and_its_page_go_with_a_run_that_traces_nothing(checkpoints, tmp_path, monkeypatch):
    claim_all("exact", monkeypatch)
    monkeypatch.setattr(Tracing, "record", shorter)
    argv = [*common(checkpoints, tmp_path), "--strategies", "prompt_lookup"]
    assert harness.script("compare", "", [*argv, "--trace", "1"]) == 1
    folder = the_folder(tmp_path)
    shown = write_page([folder]).read_text(encoding="utf-8")
    assert "<li>the trace of prompt_lookup: other tokens than in the timed rounds on prompt p0</li>" in shown
    monkeypatch.setattr(harness, "measure", lambda *arguments: pytest.fail("a unit was measured again"))
    assert harness.script("compare", "", argv) == 0
    assert the_folder(tmp_path) == folder
    assert not (folder / "nodes").exists()
    assert not (folder / "page.html").exists()
    assert summary_of(tmp_path)["problems"] == []


def test_the_same_tokens_from_other_drafts_are_named(checkpoints, tmp_path, monkeypatch, capsys):
    def drafting_less(self: Tracing, arm: EngineArm, folder: Path) -> NodeRecords:
        return RECORD(self, EngineArm(arm.name, self.study.oracle, short, arm.sampling), folder)

    short = drafts.SmallTransformer(oracles.load(str(checkpoints / "draft")), 1)
    monkeypatch.setattr(Tracing, "record", drafting_less)
    argv = [*common(checkpoints, tmp_path), "--strategies", "small_transformer", "--trace", "1"]
    assert harness.script("compare", "", [*argv, *own(checkpoints, "small_transformer", "small-transformer-")]) == 0
    said = capsys.readouterr().err
    assert "the trace of small_transformer: other steps than in the timed rounds on prompt p0" in said
    (section,) = trace_sections(the_folder(tmp_path), RUN)
    assert "Other steps than in the timed rounds on p0: the same tokens from other drafts." in section.body
    assert "Other tokens" not in section.body


def test_an_arm_that_fails_is_named_and_the_others_go_on(checkpoints, tmp_path, monkeypatch, capsys):
    def failing(self: Tracing, arm: EngineArm, folder: Path) -> NodeRecords:
        if arm.name == "prompt_lookup":
            raise FloatingPointError("NaN in the logits")
        return RECORD(self, arm, folder)

    monkeypatch.setattr(Tracing, "record", failing)
    assert harness.script("compare", "", [*common(checkpoints, tmp_path), *LOOKUPS, "--trace", "1"]) == 1
    assert "the trace of prompt_lookup: FloatingPointError: NaN in the logits" in capsys.readouterr().err
    assert [section.title for section in trace_sections(the_folder(tmp_path), RUN)] == ["Trace: lookahead"]


def test_peers_are_named(checkpoints, tmp_path, capsys):
    argv = [*common(checkpoints, tmp_path), "--strategies", "prompt_lookup", "--trace", "1", "--peer", "transformers"]
    assert harness.script("compare", "", argv) == 0
    assert "no trace of transformers: another program, which does not show its drafts" in capsys.readouterr().err
    (section,) = trace_sections(the_folder(tmp_path), RUN)
    assert "No trace of transformers (another program)." in section.body


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--trace", "-1"], "must be at least 0, got -1"),
        (["--trace", "some"], "invalid"),
        (["--oracle", "recorded:x.jsonl", "--trace", "1"], "prompt_lookup: --trace: recorded text has no laws"),
    ],
)
def test_what_cannot_be_traced_is_refused(argv, words, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        harness.script("prompt_lookup", "", [*argv, "--out", str(tmp_path)])
    assert words in f"{capsys.readouterr().err} {stop.value}"


def test_folders_of_arms_have_names_of_their_own():
    names = ["best of 8", "Best-of-8", "kary:2x3", "é", "best of 8 2", "../x"]
    slugs = slugs_of(names)
    assert slugs == {
        "best of 8": "best-of-8", "Best-of-8": "best-of-8-2", "kary:2x3": "kary-2x3", "é": "arm",
        "best of 8 2": "best-of-8-2-2", "../x": "x",
    }  # fmt: skip
