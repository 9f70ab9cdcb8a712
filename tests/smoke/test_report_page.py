"""The HTML page of finished runs: its data is the runs', no text breaks out of it, and it loads nothing."""

import importlib
import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exactspec.listing import modules
from experiments.advise.advice_parts import Parts
from experiments.advise.predicting import best
from experiments.harness import running as harness
from experiments.harness.arms import PLAIN
from experiments.harness.run_outcome import Outcome
from experiments.harness.running import COMPARE, plan_of
from experiments.report import one_run
from experiments.report.__main__ import main
from experiments.report.charts import Point, Series, label, points
from experiments.report.one_run import command_of
from experiments.report.page import Section, embed_json, pack_plotly, page
from experiments.report.runs import Run, load_runs
from experiments.report.tree_maps import acceptance
from experiments.report.why import predictions, sentences
from experiments.strategies import STRATEGIES
from experiments.studies import trees
from specdec.stats.report.intervals import Interval
from specdec.stats.report.provenance import provenance
from tests.support.pages import DOCS
from tests.support.runs.experiments import TEXT, all_own, common, own, read_json, the_folder, write_rows
from tests.support.runs.report_pages import Reader, altered, read, summary_of

HOSTILE = "</script><img src=x onerror=alert(1)><!--<script>\u2028&amp;\"'\ud800"
LOADING = {"link", "img", "iframe", "object", "embed", "audio", "video", "source", "base", "form", "svg", "image"}


def options(checkpoints: Path, *names: str) -> list[str]:
    return [*all_own(checkpoints, names), "--strategies", *names]


@pytest.fixture(scope="module")
def compared(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with chains and trees, paired by rounds."""
    out = tmp_path_factory.mktemp("compared")
    chosen = options(checkpoints, "small_transformer", "prompt_lookup", "tree")
    assert (
        harness.script("compare", "", [*common(checkpoints, out), *chosen, "--repeats", "5", "--against", "tree"]) == 0
    )
    return the_folder(out)


@pytest.fixture(scope="module")
def run(compared: Path) -> Run:
    """Return the run itself."""
    return load_runs([compared])[0]


@pytest.fixture(scope="module")
def found(compared: Path, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Return its page."""
    return read([compared], tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture
def copied(compared: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder, to be spoiled."""
    return Path(shutil.copytree(compared, tmp_path / compared.name))


def test_the_data_of_the_page_is_the_runs(compared, found):
    (data,) = found.data.values()
    summary = summary_of(compared)
    assert data["summary"] == summary
    arms = [arm for arm in summary["arms"] if arm != PLAIN]
    assert [row["arm"] for row in data["verdicts"]] == arms
    both = [one for one in data["figures"] if one["data"][0].get("name") == "all"]
    for name, speed in zip(("decoding_alone", "end_to_end"), both, strict=True):
        wanted = [Interval(**summary["arms"][arm][name]["all"]) for arm in arms]
        drawn = speed["data"][0]
        assert drawn["x"] == [one.value for one in wanted]
        assert drawn["error_x"]["array"] == pytest.approx([(one.high or 0) - one.value for one in wanted])
        assert speed["layout"]["yaxis"]["ticktext"] == arms
        assert all(str(interval) in found.seen for interval in wanted)
    for row in data["verdicts"]:
        assert row["verdict"] in found.seen
        assert row["bootstrap"] in found.seen
    assert "Speed over tree" in found.seen


def test_the_code_of_the_page_on_files_computes_tau(compared):
    page = (DOCS / "guides" / "report.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(re.sub(r"runs/compare-\w+", compared.as_posix(), code), names)
    assert names["tau"] == summary_of(compared)["arms"]["small_transformer"]["block_efficiency"]
    files = re.findall(r"^\| `([\w.]+)`(?:, `([\w.]+)`)? \|", page.partition("## Files of a run")[2], re.MULTILINE)
    told = {name for pair in files for name in pair if name}
    assert {path.name for path in compared.iterdir() if path.is_file()} <= told | {"page.html"}


def test_pictures_hold_the_statistics_of_the_run(found):
    (data,) = found.data.values()
    titles = {one["layout"]["xaxis"].get("title", {}).get("text"): one for one in data["figures"]}
    arms = data["summary"]["arms"]
    for by, across in (("position", "position in the draft"), ("rank", "rank among siblings")):
        drawn = {one["name"]: one for one in titles[across]["data"]}
        for arm in ("small_transformer", "prompt_lookup", "tree"):
            rates = {int(k): v for k, v in arms[arm][f"acceptance_by_{by}"].items() if v is not None}
            assert dict(zip(drawn[arm]["x"], drawn[arm]["y"], strict=True)) == pytest.approx(rates)
    histogram = {trace["name"]: trace["x"] for trace in titles["share of the steps"]["data"]}
    assert sum(column[0] for column in histogram.values()) == pytest.approx(1)
    stats = arms["small_transformer"]["stats"]
    mean = sum(int(name[0]) * column[0] for name, column in histogram.items())
    assert mean == pytest.approx(stats["num_accepted"] / stats["num_steps"])
    phases = {trace["name"]: trace["x"] for trace in titles["milliseconds per emitted token"]["data"]}
    plain = arms[PLAIN]["stats"]
    assert phases["score"][0] == pytest.approx(1e3 * plain["seconds"]["score"] / plain["num_emitted"])


def test_theory_stands_beside_the_measured_lengths(run):
    found = predictions(run, "small_transformer")
    stats = run.drafting["small_transformer"]
    assert list(found) == list(range(1, len(stats.steps_by_depth)))
    assert found[max(found)].tokens == pytest.approx(1 + stats.num_accepted / stats.num_steps)
    most = max(one.speedup for one in found.values())
    told = f"Of drafts of up to {max(found)} tokens, {best(found)} would be best: {most:.2f}x by theory."
    assert told in sentences(run, "small_transformer")
    assert predictions(run, "tree") == {}
    assert "would be best" not in " ".join(sentences(run, "tree"))


def test_drafts_whose_lengths_vary_are_not_taken_for_drafts_of_a_fixed_length(run, monkeypatch):
    def shorter(self: Outcome, arm: str) -> list[dict[str, Any]]:
        """Return the arm's records; a policy left two of the drafts without a token."""
        found = [{name: list(values) for name, values in records.items()} for records in whole(self, arm)]
        rows = [i for i, cut in enumerate(found[0]["shortened"]) if not cut][:2]
        for i in rows:
            found[0]["num_drafted"][i] = found[0]["num_accepted"][i] = 0
        return found

    whole = Outcome.records
    monkeypatch.setattr(Outcome, "records", shorter)
    told = " ".join(sentences(run, "small_transformer"))
    assert "Of drafts of up to" not in told
    assert "Of limits on its own drafts, whose lengths vary, " in told
    assert "Drafts of a fixed length are others" in told


def test_theory_of_chains_is_not_told_of_trees(run):
    rows = {row["arm"]: row for row in run.summary["reasons"]}
    assert rows["tree"]["from alpha"] is None
    assert rows["small_transformer"]["from alpha"] > 0


def test_shorter_drafts_are_explained_only_where_one_can_be_shorter(run, monkeypatch):
    note = "What is said of shorter drafts"
    assert note in one_run._explanation(run)
    ones = {arm: replace(stats, steps_by_depth=stats.steps_by_depth[:2]) for arm, stats in run.drafting.items()}
    monkeypatch.setattr(Run, "drafting", ones)
    assert note not in one_run._explanation(run)


def test_drafts_that_are_too_short_are_told_by_their_mean_length(run, monkeypatch):
    stats = run.drafting["small_transformer"]
    monkeypatch.setattr(Parts, "speedup", 0.01)
    told = " ".join(sentences(run, "small_transformer"))
    depths = sum(depth * steps for depth, steps in enumerate(stats.steps_by_depth)) / stats.num_steps
    assert f"more than its drafts, {depths:.2f} tokens a step on average, can yield." in told
    most = stats.theoretical_block_efficiency(1.0)
    assert most == pytest.approx(1 + depths)


def test_a_best_length_that_gains_less_than_is_worth_it_is_not_said_to_lose(run, monkeypatch):
    poor, good = (Parts(tokens, rows=1.0, drafting=0.0, scoring=1.0, rest=0.0, plain=0.0) for tokens in (1.0, 1.01))
    monkeypatch.setattr("experiments.report.why.predictions", lambda *_: {1: poor, 2: good})
    monkeypatch.setattr("experiments.report.why.obstacle", lambda _: "so it is")
    told = sentences(run, "small_transformer")
    assert told[-2].endswith("2 would be best: 1.01x by theory.")
    assert told[-1] == "Why none gains 2%: so it is."


def spoil(folder: Path) -> None:
    """Give an arm, the prompts and an argument hostile names."""
    summary = read_json(folder / "summary.json")
    for table in (summary["reasons"], summary["work"], summary["against"]):
        for row in table:
            row["arm"] = HOSTILE if row["arm"] == "prompt_lookup" else row["arm"]
    summary["arms"] = {HOSTILE if arm == "prompt_lookup" else arm: found for arm, found in summary["arms"].items()}
    summary["provenance"]["arguments"] |= {"prompts": HOSTILE, "column": HOSTILE}
    summary["provenance"] |= {"processor": HOSTILE, "refused": {HOSTILE: HOSTILE}}
    summary[HOSTILE] = [{HOSTILE: HOSTILE}]
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    entries = [*map(json.loads, (folder / "units.jsonl").read_text(encoding="utf-8").splitlines())]
    for entry in entries:
        entry["kind"], entry["prompts"] = HOSTILE, [HOSTILE]
        entry["arms"] = {HOSTILE if arm == "prompt_lookup" else arm: kept for arm, kept in entry["arms"].items()}
    write_rows(folder / "units.jsonl", entries)


def test_no_text_breaks_out_of_the_page(copied, found, tmp_path):
    spoil(copied)
    spoiled = read([copied], tmp_path / "page.html")
    assert {tag for tag, _ in spoiled.tags} == {tag for tag, _ in found.tags}
    assert {name for _, attributes in spoiled.tags for name in attributes if name.startswith("on")} == set()
    assert [kind for kind, _ in spoiled.scripts] == [kind for kind, _ in found.scripts]
    (data,) = spoiled.data.values()
    assert data["summary"] == summary_of(copied)
    assert HOSTILE in data["summary"]["arms"]
    raw = next(text for kind, text in spoiled.scripts if kind.get("type") == "application/json")
    assert not set("<>&\u2028") & set(raw)
    assert HOSTILE.replace("\ud800", "?") in spoiled.seen
    names = {trace["name"] for figure in data["figures"] for trace in figure["data"] if "name" in trace}
    assert not any("<" in name for name in names)


def test_the_page_loads_nothing(found):
    assert {tag for tag, _ in found.tags} & LOADING == set()
    attributes = [(name, value or "") for _, one in found.tags for name, value in one.items()]
    assert [value for name, value in attributes if name == "href" and not value.startswith("#")] == []
    assert [name for name, _ in attributes if name in ("src", "srcset", "action", "data", "poster", "background")] == []
    assert not re.search(r"url\(|@import|https?:", found.styles)
    assert [value for name, value in attributes if name == "style" and "url(" in value] == []
    (policy,) = [one["content"] for _, one in found.tags if one.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(part.strip().split(" ", 1) for part in str(policy).split(";"))
    assert rules.pop("default-src") == "'none'"
    assert set(" ".join(rules.values()).split()) == {"'none'", "'unsafe-inline'", "data:", "blob:"}
    library = [text for kind, text in found.scripts if not kind and pack_plotly() in text]
    assert len(library) == 1
    ours = [text.replace(pack_plotly(), "") for kind, text in found.scripts if not kind]
    assert not any(re.search(r"https?:|import\(|fetch\(|XMLHttpRequest|\beval\b", text) for text in ours)


def test_every_link_leads_somewhere_and_every_chart_has_its_data(found):
    places = {one["id"] for _, one in found.tags if "id" in one}
    assert {str(one["href"])[1:] for tag, one in found.tags if tag == "a"} <= places
    (name,) = found.data
    charts = [one for _, one in found.tags if one.get("class") == "chart"]
    assert [(one["data-figures"], int(str(one["data-number"]))) for one in charts] == [
        (name, number) for number in range(len(found.data[name]["figures"]))
    ]
    assert len(charts) == 8


def rename(folder: Path, name: str) -> None:
    """Have a run's units call something otherwise."""
    units = folder / "units.jsonl"
    units.write_text(units.read_text(encoding="utf-8").replace(f'"{name}"', '"of_before"'), encoding="utf-8")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (shutil.rmtree, "no such folder; give one that an experiment wrote"),
        (lambda folder: (folder / "summary.json").unlink(), "no summary.json; give a folder of compare"),
        (lambda folder: (folder / "units.jsonl").rename(folder / "journal.jsonl"), "not finished"),
        (lambda folder: (folder / "units.jsonl").unlink(), "no units.jsonl beside its summary"),
        (lambda folder: (folder / "summary.json").write_text("{", encoding="utf-8"), "is broken"),
        (lambda folder: (folder / "summary.json").write_text("[]", encoding="utf-8"), "holds no JSON object"),
        (lambda folder: (folder / "summary.json").write_text("{}", encoding="utf-8"), "no arms beside plain decoding"),
        (lambda folder: (folder / "units.jsonl").write_text("", encoding="utf-8"), "are not of one run"),
        (lambda folder: rename(folder, "num_drafted"), "written by another version .*of_before"),
        (lambda folder: rename(folder, "settings"), "written by another version .*settings"),
    ],
)
def test_a_folder_without_a_finished_run_is_refused(harm, message, copied, tmp_path):
    harm(copied)
    with pytest.raises(SystemExit, match=f"report: .*{re.escape(str(copied))}.*{message}"):
        main([str(copied), "--out", str(tmp_path / "page.html")])
    assert not (tmp_path / "page.html").exists()


def test_a_run_that_ended_with_problems_has_a_page_that_names_them(checkpoints, tmp_path):
    too_long = json.dumps({"id": "long", "kind": "a", "prompt": TEXT * 40}) + "\n"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text((checkpoints / "prompts.jsonl").read_text(encoding="utf-8") + too_long, encoding="utf-8")
    argv = [*common(checkpoints, tmp_path / "runs"), "--strategies", "prompt_lookup", "--prompts", str(prompts)]
    assert harness.script("compare", "", argv) == 1
    folder = the_folder(tmp_path / "runs")
    (problem,) = summary_of(folder)["problems"]
    seen = read([folder], tmp_path / "page.html").seen
    assert "long" in problem
    at = seen.index(problem)
    assert seen.index("The run ended with problems:") < at < seen.index("Verdicts", at)
    journal = folder / "journal.jsonl"
    whole = journal.read_text(encoding="utf-8")
    # Killed while it goes on: before, and after all units were measured.
    for text, problems in ((whole.partition("\n")[2], [problem]), (whole, [])):
        journal.write_text(text, encoding="utf-8")
        (folder / "summary.json").write_text(json.dumps({**summary_of(folder), "problems": problems}), encoding="utf-8")
        with pytest.raises(SystemExit, match=r"not finished .*; its command, run again, goes on with it"):
            main([str(folder)])


def test_a_run_that_measured_nothing_is_refused_with_its_problems(copied):
    summary = {name: found for name, found in summary_of(copied).items() if name != "arms"}
    (copied / "summary.json").write_text(json.dumps({**summary, "problems": ["prompt p: too long"]}), encoding="utf-8")
    with pytest.raises(SystemExit, match="it measured nothing and ended with problems: prompt p: too long"):
        main([str(copied)])


def test_places_that_cannot_be_written_and_runs_given_twice_are_refused(compared, tmp_path):
    with pytest.raises(SystemExit, match=r"report: --out .*: a folder; name a file in it"):
        main([str(compared), "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"report: --out .*: there is no folder"):
        main([str(compared), "--out", str(tmp_path / "none" / "page.html")])
    with pytest.raises(SystemExit, match=r"report: RUN .*: given twice"):
        main([str(compared), str(compared)])


def test_without_the_charting_library_the_error_names_what_to_install(compared, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(SystemExit, match=re.escape("report: the page's charts need the package plotly: pip install")):
        main([str(compared)])


def test_several_runs_have_pictures_across_them(compared, tmp_path, capsys):
    varied = ({"batch_size": 2}, {"small_transformer.num_draft_tokens": 2}, {"temperature": 0.8, "top_p": 0.9})
    folders = [compared, *(altered(compared, tmp_path / str(n), {}, **one) for n, one in enumerate(varied))]
    assert main([*map(str, folders), "--out", str(tmp_path / "page.html")]) == 0
    assert f"Written: {tmp_path / 'page.html'}" in capsys.readouterr().out
    found = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    sections = [str(one["id"]) for tag, one in found.tags if tag == "section"]
    assert sections == list(found.data)
    assert [tag for tag, _ in found.tags].count("section") == 5
    batch, temperature, by_length = found.data["across"]["figures"]
    assert batch["layout"]["xaxis"]["title"]["text"] == "rows in a batch"
    arms = ("small_transformer", "prompt_lookup", "tree")
    theory = [f"{arm}, theory" for arm in arms[:2]]
    assert {trace["name"]: trace["x"] for trace in batch["data"]} == {name: [1, 2] for name in [*arms, *theory]}
    assert {tuple(trace["x"]) for trace in temperature["data"]} == {(0, 0.8)}
    assert by_length["layout"]["xaxis"]["title"]["text"] == "draft length of small_transformer, tokens"
    curve, measured = by_length["data"]
    assert measured["x"] == [2, 4]
    assert curve["x"] == [1, 2, 3, 4]
    assert [row["batch size"] for row in found.data["across"]["overview"]] == [1, 2, 1, 1]


def test_runs_of_one_name_stay_apart(compared, copied, tmp_path):
    found = read([compared, copied], tmp_path / "page.html")
    assert len(found.data) == 3
    for subject in ("rows in a batch", "temperature", "draft length"):
        assert f"No picture of speed by {subject}: no runs differ in that alone." in found.seen
    assert f"{copied.parent.name}/{copied.name}" in found.seen


def test_arms_are_numbered_over_all_runs_of_a_page(compared, copied):
    for path in (copied / "units.jsonl", copied / "summary.json"):
        text = path.read_text(encoding="utf-8")
        entries = [json.loads(part) for part in (text.splitlines() if path.suffix == ".jsonl" else [text])]
        for entry in entries:
            del entry["arms"]["small_transformer"]
        path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")
    fewer, more = load_runs([copied, compared])
    assert fewer.page_arms == more.page_arms == ["prompt_lookup", "tree", "small_transformer"]


def test_traces_of_runs_of_one_name_stay_apart(checkpoints, tmp_path):
    argv = [*common(checkpoints, tmp_path / "runs"), "--strategies", "prompt_lookup", "--trace", "1"]
    assert harness.script("compare", "", argv) == 0
    folder = the_folder(tmp_path / "runs")
    others = [Path(shutil.copytree(folder, tmp_path / "others" / name)) for name in (folder.name, "a-b", "a_b")]
    found = read([folder, *others], tmp_path / "page.html")
    traces = [name for name, data in found.data.items() if "link" in data]
    assert len(traces) == 4
    assert {found.data[name]["link"] for name in traces} == {"trace-prompt-lookup"}
    assert {str(one["data-trace"]) for _, one in found.tags if "data-trace" in one} == set(traces)


def test_runs_of_other_machines_or_versions_are_not_joined(compared, tmp_path):
    names = ["processor", "device", "backend", "threads", "commit"]
    apart = [altered(compared, tmp_path / name, {name: "another"}, batch_size=2) for name in names]
    seen = read([compared, *apart], tmp_path / "page.html").seen
    assert "No picture of speed by rows in a batch: no runs differ in that alone." in seen
    assert f"In none of these pictures: {', '.join([compared.name, *names])}. A picture joins timed runs" in seen


def test_runs_that_differ_in_a_batch_size_alone_are_joined_and_one_that_no_picture_has_is_named(compared, tmp_path):
    wide, again = altered(compared, tmp_path / "wide", {}, batch_size=2), altered(compared, tmp_path / "again", {})
    page_of = read([compared, wide, again], tmp_path / "page.html")
    assert {tuple(trace["x"]) for trace in page_of.data["across"]["figures"][0]["data"]} == {(1, 2)}
    assert "In none of these pictures: again. " in page_of.seen
    seen = read([compared, wide], tmp_path / "page.html").seen
    assert "Decoding alone by rows in a batch" in seen
    assert "In none of these" not in seen


def test_runs_of_other_lists_of_strategies_are_series_of_one_picture(compared, tmp_path):
    ways = [(size, names) for names in (["tree"], ["tree", "ngram"]) for size in (1, 2)]
    folders = [
        altered(compared, tmp_path / f"{size}-{'-'.join(names)}", {}, batch_size=size, strategies=names)
        for size, names in ways
    ]
    (picture,) = read(folders, tmp_path / "page.html").data["across"]["figures"]
    arms = ("small_transformer", "prompt_lookup", "tree")
    wanted = {label(f"{arm}, {names}"): [1, 2] for arm in arms for names in ("tree", "tree ngram")}
    assert {one["name"]: one["x"] for one in picture["data"] if "theory" not in one["name"]} == wanted


@pytest.mark.parametrize(
    ("now", "then", "said"),
    [
        ("abc", "abc", None),
        ("abc", "def", "by commit abc, from times and counts that commit def measured."),
        ("a+changes", "a+changes", "by commit a+changes, from times and counts that commit a+changes measured."),
        (None, None, "by an unknown commit, from times and counts that an unknown commit measured."),
    ],
)
def test_a_page_says_whose_code_computed_its_tables(now, then, said, compared, tmp_path, monkeypatch):
    run = altered(compared, tmp_path / "run", {"commit": then})
    monkeypatch.setattr("experiments.report.one_run.facts_now", lambda arguments: {"commit": now})
    seen = read([run], tmp_path / "page.html").seen
    words = "Tables, reasons and pictures were computed for this page"
    assert (words in seen) == (said is not None)
    assert said is None or f"{words} {said}" in seen


def test_a_page_of_every_strategy_sampled_in_batches(everything, tmp_path):
    folder, _ = everything
    seen = read([folder], tmp_path / "page.html").seen
    (run,) = load_runs([folder])
    assert list(run.drafting) == list(STRATEGIES)
    assert all(sentence in seen for arm in STRATEGIES for sentence in sentences(run, arm))
    assert "Acceptance by node: tree" in seen


def test_peers_have_verdicts_and_their_refusals_stand_in_their_words(checkpoints, tmp_path):
    argv = [*common(checkpoints, tmp_path / "runs"), "--strategies", "prompt_lookup", "--batch-size", "2"]
    assert harness.script("compare", "", [*argv, "--peer", "transformers", "transformers:lookup"]) == 0
    folder = the_folder(tmp_path / "runs")
    found = read([folder], tmp_path / "page.html")
    (data,) = found.data.values()
    assert [row["arm"] for row in data["verdicts"]] == ["prompt_lookup", "transformers"]
    refused = summary_of(folder)["provenance"]["refused"]
    assert list(refused) == ["transformers:lookup"]
    assert f"Refused: {refused['transformers:lookup']}" in found.seen


def test_trees_have_maps_and_stand_beside_theory(checkpoints, tmp_path):
    argv = [*common(checkpoints, tmp_path / "runs"), *own(checkpoints, "tree"), "--sizes", "3", "--max-nodes", "5"]
    argv += ["--model", str(checkpoints / "target"), "--max-depth", "2", "--ranks", "3"]
    argv += ["--shapes", "chain:2", "kary:2x2", "grown:4x2"]
    assert trees.main(argv) == 0
    folder = the_folder(tmp_path / "runs")
    found = read([folder], tmp_path / "page.html")
    (data,) = found.data.values()
    titles = re.findall(r"Acceptance by node: (\S+)", found.seen)
    assert "kary:2x2" in titles
    assert not {"chain:2", "grown:4x2"} & set(titles)
    rows = read_json(folder / "trees.json")["rows"]
    up = [one["layout"]["yaxis"].get("title", {}).get("text") for one in data["figures"]]
    sizes = data["figures"][up.index("tokens of a full step")]
    drawn = {trace["name"]: trace["y"] for trace in sizes["data"]}
    for row in rows:
        if row["tau full"] is not None:
            assert drawn[row["shape"]] == [row["tau full"]]
    (folder / "trees.json").write_text('{"calibration": {}, "rows": [], "shapes": {}}', encoding="utf-8")
    assert "trees.json was written by another version" in read([folder], tmp_path / "page.html").seen


def test_any_arm_whose_source_declares_a_static_tree_has_its_map(checkpoints, tmp_path, found):
    argv = [*common(checkpoints, tmp_path / "runs"), *options(checkpoints, "medusa", "prompt_lookup")]
    assert harness.script("compare", "", [*argv, "--medusa-shape", "paths:0.0,1"]) == 0
    folder = the_folder(tmp_path / "runs")
    arms = summary_of(folder)["arms"]
    assert {arm: kept["tree"] for arm, kept in arms.items()} == {
        "plain": None, "medusa": [[0], [1], [0, 0]], "prompt_lookup": None,
    }  # fmt: skip
    assert "Acceptance by node: medusa" in read([folder], tmp_path / "page.html").seen
    assert "No tree map" not in found.seen


def test_acceptance_by_node_by_hand():
    paths = [(0,), (1,), (0, 0), (0, 1)]
    records = [
        {"ranks": [[0], [0, 1], [1], []], "shortened": [False] * 4},
        {"ranks": [[0, 0], [0, 0]], "shortened": [False, True]},
    ]
    assert acceptance(records, paths) == {(0,): (3, 5), (1,): (1, 5), (0, 0): (1, 3), (0, 1): (1, 3)}


def test_recorded_text_has_a_page_without_times(tmp_path):
    rows = [{"id": f"p{i}", "kind": "ab"[i % 2], "prompt": TEXT * (i + 1), "completion": TEXT[i:]} for i in range(4)]
    records = write_rows(tmp_path / "records.jsonl", rows)
    argv = ["--oracle", f"recorded:{records}", "--out", str(tmp_path / "out"), "--max-new-tokens", "12"]
    assert harness.script("compare", "", [*argv, "--strategies", "prompt_lookup", "small_transformer"]) == 0
    found = read([the_folder(tmp_path / "out")], tmp_path / "page.html")
    assert "Worth of the drafts" in found.seen
    assert "prompt_lookup makes the most of a verify pass" in found.seen
    for absent in ("Verdicts", "tokens/s", "milliseconds", "times as fast"):
        assert absent not in found.seen
    (data,) = found.data.values()
    assert len(data["figures"]) == 2
    outputs = sum(arm["prompts"] for arm in data["summary"]["arms"].values())
    assert f"{outputs} of {outputs} outputs, of 3 arms, are plain decoding's" in found.seen
    units = the_folder(tmp_path / "out") / "units.jsonl"
    spoiled = units.read_text(encoding="utf-8").replace('"identical": [true]', '"identical": [false]', 1)
    units.write_text(spoiled, encoding="utf-8")
    seen = read([the_folder(tmp_path / "out")], tmp_path / "page.html").seen
    assert f"{outputs - 1} of {outputs} outputs, of 3 arms, are plain decoding's" in seen


def test_the_command_of_a_run_gives_its_arguments_back(run):
    words = shlex.split(command_of(run))
    assert words[:3] == ["python", "-m", "experiments.compare"]
    again = plan_of(COMPARE, words[3:]).arguments
    assert json.loads(json.dumps(again)) == {**run.arguments, "fresh": False}


def test_the_command_of_a_run_leaves_out_the_strategies_that_its_oracle_could_not_have():
    arguments = provenance(plan_of(COMPARE, []).arguments)["arguments"]
    facts = {"experiment": COMPARE, "arguments": arguments, "refused": {"staged": "it has no model inside"}}
    words = shlex.split(command_of(Run(Path(), "", "", {"provenance": facts}, Outcome([], []))))
    ran = [name for name in arguments["strategies"] if name != "staged"]
    assert [*plan_of(COMPARE, words[3:]).arguments["strategies"]] == ran
    assert not [word for word in words if word.startswith("--staged-")]


def asked(name: str, argv: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the arguments that an experiment would run with, as its summary would have them."""
    if name == "trees":
        return dict(provenance(trees.parse(argv))["arguments"])
    place = f"{modules()[name]}.__main__" if name == "spec_bench" else modules()[name]
    module, kept = importlib.import_module(place), []
    monkeypatch.setattr(module, "run", lambda plan, *_, **__: kept.append(plan.arguments))
    module.main(argv)
    return dict(provenance(kept[0])["arguments"])


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("staged", ["--model", "code-draft-tiny", "--width", "2"]),
        ("trees", ["--shapes", "chain:2", "--sizes", "3", "5", "--max-depth", "4"]),
        ("lengths", ["--lengths", "32", "64", "--ngram-order", "3", "--strategies", "ngram"]),
        ("spec_bench", ["--file", "question.jsonl", "--strategies", "prompt_lookup"]),
        ("spec_bench", ["--file", "question.jsonl", "--per-category", "8", "--seeds", "3", "4"]),
        ("threshold", ["--gammas", "1", "2", "--model", "code-draft-tiny"]),
    ],
)
def test_the_command_of_an_experiment_gives_its_arguments_back(name, argv, monkeypatch):
    arguments = asked(name, [*argv, "--temperature", "0.5", "--fresh"], monkeypatch)
    run = Run(Path(), "", "", {"provenance": {"experiment": name, "arguments": arguments}}, Outcome([], []))
    words = shlex.split(command_of(run))
    assert words[:3] == ["python", "-m", modules()[name]]
    assert asked(name, words[3:], monkeypatch) == {**arguments, "fresh": False}


@pytest.mark.parametrize("names", [[""], ["1st"], ["a b"], ["a/b"], ['a"b'], ["a", "a"]], ids=str)
def test_names_of_sections_that_are_no_anchors_of_their_own_are_refused(names):
    with pytest.raises(ValueError, match="give each a name of its own"):
        page("t", [Section(name, "t", "") for name in names])


@pytest.mark.parametrize(
    "part", [{"script": "x = '</SCRIPT>'"}, {"style": "</style>"}, {"script": "'<!--' + '<script>'"}]
)
def test_a_section_whose_style_or_script_would_break_the_page_is_refused(part):
    with pytest.raises(ValueError, match="its style or script holds a tag that ends it"):
        page("t", [Section("a", "t", "", **part)])


def test_parts_of_sections_stand_once_and_data_by_name():
    sections = [Section(name, f"<{name}>", "<p>b</p>", ".x {}", "run()", {"text": HOSTILE}) for name in ("one", "two")]
    found = Reader(page(HOSTILE, sections))
    assert found.styles.count(".x {}") == 1
    assert [text.strip() for kind, text in found.scripts if not kind].count("run()") == 1
    assert found.data == {"one": {"text": HOSTILE}, "two": {"text": HOSTILE}}
    assert "<one>" in found.seen


def test_json_in_a_page_has_no_tags_and_no_numbers_that_json_lacks():
    text = embed_json({"<": ["</script>", "<!--", "\u2028\u2029", "&lt;", "\ud800"]})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"<": ["</script>", "<!--", "\u2028\u2029", "&lt;", "\ud800"]}
    with pytest.raises(ValueError, match="JSON"):
        embed_json(float("nan"))


def test_names_in_charts_have_no_tags():
    assert label("<b>a</b>\n&  b") == "&lt;b&gt;a&lt;/b&gt; &amp; b"
    assert label("x" * 99) == "x" * 25 + "…"
    picture = points("t", "n", "<i>x</i>", "y", [Series("<a href='http://x'>", 0, [])])
    assert "<" not in json.dumps(picture.layout) + json.dumps(picture.traces)


def test_long_names_that_begin_alike_are_series_of_their_own():
    names = [f"{'x' * 40} {end}" for end in "ab"]
    series = [Series(name, number, [Point(1, 1)], [(1, 1), (2, 1)]) for number, name in enumerate(names)]
    groups = [trace["legendgroup"] for trace in points("t", "n", "x", "y", series).traces]
    assert groups[:2] == groups[2:]  # curves, then points
    assert len(set(groups)) == 2
