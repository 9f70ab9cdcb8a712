"""The experiments from their command lines, on tiny random checkpoints: results, resumption, failures."""

import importlib
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import oracles
from experiments import exactness, peers, train_head
from experiments.advise.calibrating import Trees
from experiments.harness import arguments as shared_arguments
from experiments.harness import disturbance, study
from experiments.harness import running as harness
from experiments.harness.arguments import fingerprint
from experiments.harness.arms import EngineArm, Measurement, units_of
from experiments.harness.building import runnable_arms
from experiments.harness.journal import JOURNAL, Journal
from experiments.harness.tiny import tiny_strategies
from experiments.strategies import STRATEGIES
from experiments.strategies.tree_shapes import shape_of
from experiments.studies import trees
from specdec import SpeculativeDecoder
from specdec.kernels import REFERENCE
from specdec.prompts import NamedPrompt
from specdec.stats import Stats
from tests.support.runs.experiments import TEXT, all_own, common, own, read_json, summary_of, the_folder, write_rows


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_a_strategy_runs_and_leaves_its_results(name, checkpoints, tmp_path, capsys, monkeypatch, request):
    if name in ("prompt_lookup", "tree"):
        request.getfixturevalue("as_shipped")
    argv = [*common(checkpoints, tmp_path), *own(checkpoints, name), "--num-prompts", "2"]
    monkeypatch.setattr(sys, "argv", [name, *argv])
    monkeypatch.delitem(sys.modules, f"experiments.{name}", raising=False)  # runpy warns of one that was imported
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(f"experiments.{name}", run_name="__main__")
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "2/2" in printed
    assert str(tmp_path) in printed
    assert {path.name for path in the_folder(tmp_path).iterdir()} == {
        "records.parquet", "summary.json", "tables.md", "tables.tex", "units.jsonl"
    }  # fmt: skip
    summary = summary_of(tmp_path)
    arm = summary["arms"][name]
    assert (arm["identical"], arm["prompts"], summary["problems"]) == (2, 2, [])
    assert arm["stats"]["num_emitted"] == summary["arms"]["plain"]["stats"]["num_emitted"]
    assert arm["stats"]["cache_bytes"] > 0
    assert arm["stats"]["weight_bytes"] > 0
    assert set(arm["decoding_alone"]) == set(arm["end_to_end"]) == {"a", "b", "all"}
    assert summary["provenance"]["arguments"]["seed"] == 0


def test_arms_are_paired_with_one_another_by_rounds_where_prompts_are_few(checkpoints, tmp_path, capsys):
    argv = [*common(checkpoints, tmp_path), "--strategies", "prompt_lookup", "lookahead", "--repeats", "5"]
    assert harness.script("compare", "", [*argv, "--against", "lookahead"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "95 % intervals clustered by round" in printed
    assert "these hold for the very prompts measured" in printed
    assert "Pairs with lookahead, on the same prompts. The verdict goes by end to end" in printed
    assert "decoding alone lookahead's seconds per emitted token" in printed
    folder = the_folder(tmp_path)
    rows = {row["arm"]: row for row in summary_of(tmp_path)["against"]}
    assert list(rows) == ["plain", "prompt_lookup"]
    assert all(row["verdict"] in ("faster", "slower", "not told apart") for row in rows.values())
    # Five rounds have an interval, which on a busy machine may be too wide to be printed.
    bounds = [row[column] for row in rows.values() for column in ("decoding alone", "end to end", "bootstrap")]
    assert all(re.search(r"\[|wide", text) for text in bounds)
    assert harness.script("compare", "", argv) == 0  # the same measurements, without the pairs
    assert "Pairs with lookahead" not in capsys.readouterr().out
    assert the_folder(tmp_path) == folder


def test_variants_are_arms_and_work_is_counted(checkpoints, tmp_path, capsys):
    argv = [*common(checkpoints, tmp_path), "--window", "2", "--ngram", "3", "--guesses", "2"]
    assert harness.script("lookahead", "", argv) == 0
    assert "extra nodes" in capsys.readouterr().out
    summary = summary_of(tmp_path)
    work = {row["arm"]: row for row in summary["work"]}
    assert list(work) == ["plain", "lookahead", "window alone", "text alone", "empty pool"]
    assert work["plain"]["all"] == work["empty pool"]["all"] == "1.00 (n = 4)"
    assert work["plain"]["extra nodes"] == work["empty pool"]["drafted"] == work["text alone"]["scouts"] == 0
    for arm, row in work.items():
        stats = Stats.from_dict(summary["arms"][arm]["stats"])
        assert row["all"] == row["bootstrap"] == f"{stats.block_efficiency:.2f} (n = 4)"
        assert row["extra nodes"] == pytest.approx(stats.num_scored_nodes / stats.num_steps - 1, rel=1e-12)
    # Ten steps: three scouts each, but one in the last but one, none in the last.
    assert work["empty pool"]["scouts"] == 2.5
    assert {arm["identical"] for arm in summary["arms"].values()} == {4}


@pytest.mark.parametrize("rule", ["rejection", "coupled", "sample_and_match"])
def test_compare_with_sampling_in_batches(rule, everything, checkpoints, tmp_path, capsys):
    (folder, printed), names = everything, list(STRATEGIES)
    if rule != "rejection":
        names = ["ngram", "tree", "merged"]
        argv = [*common(checkpoints, tmp_path), "--temperature", "0.9", "--batch-size", "2", "--repeats", "2"]
        argv += ["--rule", rule, "--strategies", *names, *all_own(checkpoints, names)]
        assert harness.script("compare", "", argv) == 0
        folder, printed = the_folder(tmp_path), capsys.readouterr().out
    assert printed.count("4/4") == 1 + len(names)
    ways = {
        "rejection": "sampling at temperature 0.9, drawn by rejection (rule standard on chains, multi_draft on trees)",
        "coupled": "coupled sampling at temperature 0.9",
        "sample_and_match": "sampling at temperature 0.9, drawn by rule sample_and_match",
    }
    assert ways[rule] in " ".join(printed.split())
    from datasets import Dataset

    records = Dataset.from_parquet(str(folder / "records.parquet")).to_dict()
    arms = read_json(folder / "summary.json")["arms"]
    stats, plain = Stats.from_dict(arms["ngram"]["stats"]), arms["plain"]
    fitting = {"plain": "standard", "ngram": "standard", "tree": "multi_draft", "merged": "multi_draft"}
    if rule != "rejection":  # plain decoding has the fastest rule, unless draws are coupled
        fitting |= dict.fromkeys(names if rule != "coupled" else fitting, rule)
    assert {arm: arms[arm]["rule"] for arm in fitting} == fitting
    if rule == "coupled":
        assert {"identical", "law"} & set(plain) == {"identical"}
        assert re.search("^arm .* identical$", printed, re.MULTILINE)
    else:
        assert all(arm["sound"] == 4 and 0 < arm["law"]["e_value"] < 1e6 for arm in arms.values())
        assert all(arm["law"]["tokens"] == 20 and arm["law"]["impossible"] == 0 for arm in arms.values())
        assert re.search("^arm .* checked +law e$", printed, re.MULTILINE)
        assert "every arm draws a text of its own" in " ".join(printed.split())
    emitted = sum(n for arm, n in zip(records["arm"], records["num_emitted"], strict=True) if arm == "ngram")
    assert emitted == stats.num_emitted
    assert set(records["round"]) == {0, 1}
    assert set(records["prompt"]) == {"p0", "p1", "p2", "p3"}


def lookup(checkpoints: Path, out: Path, *more: str) -> int:
    return harness.script("prompt_lookup", "", [*common(checkpoints, out), *more])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...], int]]:
    """Collect (arm, prompts, new tokens) of every run of an arm."""
    seen: list[tuple[str, tuple[str, ...], int]] = []
    original = EngineArm.run

    def run(self: EngineArm, prompts: Sequence[NamedPrompt], seeds: Any, max_new_tokens: int) -> Measurement:
        seen.append((self.name, tuple(prompt.name for prompt in prompts), max_new_tokens))
        return original(self, prompts, seeds, max_new_tokens)

    monkeypatch.setattr(EngineArm, "run", run)
    return seen


def test_int8_weights_are_named_and_drafts_change_no_token(checkpoints, tmp_path, capsys):
    argv = [*common(checkpoints, tmp_path), *own(checkpoints, "small_transformer"), "--weights", "int8"]
    assert harness.script("small_transformer", "", argv) == 0
    assert "; int8 weights 0." in capsys.readouterr().out
    summary = summary_of(tmp_path)
    assert summary["provenance"]["arguments"]["weights"] == "int8"
    assert {arm["identical"] for arm in summary["arms"].values()} == {4}


def test_a_failed_prompt_is_recorded_and_tried_again(checkpoints, tmp_path, runs, monkeypatch, capsys):
    working = EngineArm.run

    def broken(self: EngineArm, prompts: Sequence[NamedPrompt], seeds: Any, max_new_tokens: int) -> Measurement:
        if prompts[0].name == "p0":
            raise FloatingPointError("NaN in the logits")
        return working(self, prompts, seeds, max_new_tokens)

    monkeypatch.setattr(EngineArm, "run", broken)
    assert lookup(checkpoints, tmp_path) == 1
    said = capsys.readouterr()
    assert "FAILED" in said.err
    assert "['p0']" in said.err
    assert "NaN in the logits" in said.err
    assert "3/3" in said.out
    monkeypatch.setattr(EngineArm, "run", working)
    runs.clear()
    assert lookup(checkpoints, tmp_path) == 0
    assert [prompts for _, prompts, tokens in runs if tokens == 10] == [("p0",)] * 2
    assert "4/4" in capsys.readouterr().out
    runs.clear()
    assert lookup(checkpoints, tmp_path) == 0
    assert len({prompts for _, prompts, tokens in runs if tokens == 10}) == 4


def test_an_interrupted_run_goes_on_where_it_was(checkpoints, tmp_path, runs, monkeypatch):
    working = Journal.append

    def interrupted(self: Journal, entry: dict[str, Any]) -> None:
        if len(self.entries) == 2:
            with self.path.open("a", encoding="utf-8") as file:
                file.write('{"unit": 2, "cut of')
            raise KeyboardInterrupt
        working(self, entry)

    monkeypatch.setattr(Journal, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lookup(checkpoints, tmp_path)
    monkeypatch.setattr(Journal, "append", working)
    runs.clear()
    assert lookup(checkpoints, tmp_path) == 0
    assert {prompts for _, prompts, tokens in runs if tokens == 10} == {("p1",), ("p3",)}
    runs.clear()
    assert lookup(checkpoints, tmp_path, "--seed", "5") == 0
    assert len({prompts for _, prompts, tokens in runs if tokens == 10}) == 4


def test_units_that_were_disturbed_are_measured_again_as_the_run_says(checkpoints, tmp_path, runs, monkeypatch, capsys):
    monkeypatch.setattr(disturbance, "SUSPICIOUS", 1.0)  # times above the median: two of four
    assert lookup(checkpoints, tmp_path) == 0
    *before, told = capsys.readouterr().out.splitlines()
    assert " ".join(before).index("disturbed 2 of 4 units") < " ".join(before).index("Speed-up over plain decoding")
    disturbed = {(name,) for name in re.findall(r"\d \((p\d)\)", told)}
    subprocess.run(told.partition("again: ")[2].partition("; then")[0], shell=True, check=True)
    runs.clear()
    assert lookup(checkpoints, tmp_path) == 0
    assert {prompts for _, prompts, tokens in runs if tokens == 10} == disturbed
    assert len(disturbed) == 2


def test_draws_of_another_law_or_length_fail(checkpoints, tmp_path, monkeypatch, capsys):
    """One arm draws twice as hot as the requests ask, and loses a token; another is another one when asked again."""
    original, asked = EngineArm.run, []

    def wrong(self: EngineArm, prompts: Sequence[NamedPrompt], seeds: Any, max_new_tokens: int) -> Measurement:
        if self.name == "lookahead":
            asked.append(max_new_tokens)
            seeds = [(seed, number + len(asked)) for seed, number in seeds]
        if self.name == "prompt_lookup":
            made = EngineArm("hot", self.decoder.oracle, None, replace(self.sampling, temperature=1.6)).run(
                prompts, seeds, max_new_tokens
            )
            return replace(made, tokens=[made.tokens[0][: 39 if prompts[0].name == "p3" else 40]])
        return original(self, prompts, seeds, max_new_tokens)

    monkeypatch.setattr(EngineArm, "run", wrong)
    argv = [*common(checkpoints, tmp_path), "--strategies", "prompt_lookup", "lookahead", "--temperature", "0.05"]
    argv[argv.index("--max-new-tokens") + 1] = "40"
    assert harness.script("compare", "", argv) == 1
    said = capsys.readouterr()
    assert "['p3']: the output of prompt_lookup lacks its length" in said.err
    assert "['p0']: the output of lookahead lacks its length, or is another one in another round" in said.err
    assert "the tokens of prompt_lookup do not follow the oracle's law: e-value " in said.err
    assert "the tokens of plain do not follow" not in said.err
    sound = {arm: kept["sound"] for arm, kept in summary_of(tmp_path)["arms"].items()}
    assert sound == {"plain": 4, "prompt_lookup": 3, "lookahead": 3}


def test_a_rule_that_does_not_fit_is_refused_or_left_out(checkpoints, tmp_path, capsys):
    argv = [*common(checkpoints, tmp_path), "--rule", "standard", *own(checkpoints, "tree", "tree-")]
    words = "--rule standard judges chains only, and small_transformer branches: use one of rejection, "
    with pytest.raises(SystemExit, match=f"compare: {words}sample_and_match, coupled, multi_draft"):
        harness.script("compare", "", [*argv, "--strategies", "prompt_lookup", "tree"])
    # Where nobody asked for a strategy by name, nor for its options, it is left out.
    arguments = harness.plan_of(harness.COMPARE, [*argv[:-2], "--oracle", "code"]).arguments
    oracle = harness.load_target(arguments)
    arms = [*runnable_arms(["prompt_lookup", "tree"], {**arguments, "temperature": 1.0}, oracle)]
    assert [isinstance(arm, peers.RefusedArm) for arm in arms] == [False, True]
    assert f"left out: tree: {words}" in capsys.readouterr().err


def test_outputs_are_equally_long_if_ends_of_texts_are_ignored(checkpoints, tmp_path, capsys):
    argv = ["--temperature", "8", "--ignore-eos"]
    assert lookup(checkpoints, tmp_path, *argv) == 0
    printed = capsys.readouterr().out
    assert "--wide adds tokens/answer, accept_rate@k, cond_accept@k" in printed
    assert "cond_accept@0" not in printed
    assert "cond_accept@0" in (the_folder(tmp_path) / "tables.md").read_text(encoding="utf-8")
    folder = the_folder(tmp_path)
    assert lookup(checkpoints, tmp_path, *argv, "--wide") == 0  # the same measurements, more of them shown
    assert the_folder(tmp_path) == folder
    assert "cond_accept@0" in capsys.readouterr().out
    from datasets import Dataset

    records = Dataset.from_parquet(str(folder / "records.parquet"), cache_dir=str(folder / "cache")).to_dict()
    assert set(records["finish_reason"]) == {"length"}
    summary = summary_of(tmp_path)
    assert {row["ends"] for row in summary["acceptance"]} == {"length 4"}
    assert set(summary["arms"]["prompt_lookup"]) >= {"verify_rate", "survival_by_position"}
    assert {arm["stats"]["num_emitted"] for arm in summary["arms"].values()} == {40}
    assert summary["provenance"]["arguments"]["ignore_eos"] is True


def test_output_that_differs_from_plain_fails(checkpoints, tmp_path, monkeypatch, capsys):
    original = EngineArm.run

    def wrong(self: EngineArm, prompts: Sequence[NamedPrompt], seeds: Any, max_new_tokens: int) -> Measurement:
        made = original(self, prompts, seeds, max_new_tokens)
        changed = self.name == "prompt_lookup" and prompts[0].name == "p3"
        return replace(made, claim="exact", tokens=[[0, *made.tokens[0][1:]]]) if changed else made

    monkeypatch.setattr(EngineArm, "run", wrong)
    assert lookup(checkpoints, tmp_path) == 1
    said = capsys.readouterr()
    assert "3/4" in said.out
    assert "['p3']: the output of prompt_lookup differs" in said.err


def test_trees_stand_beside_theory(checkpoints, tmp_path, capsys, monkeypatch):
    argv = [*common(checkpoints, tmp_path / "out"), *own(checkpoints, "tree"), "--sizes", "3", "--max-nodes", "5"]
    (tmp_path / "own.py").write_text("from specdec import Kary\n", encoding="utf-8")
    own_shape = f"{tmp_path}/own.py:Kary:width=1,depth=2"
    argv += ["--shapes", "chain:2", "reranked:4x2x2", "paths:0.0,1", own_shape, "--max-depth", "2", "--ranks", "3"]
    assert trees.main(argv) == 0
    folder = the_folder(tmp_path / "out")
    assert {"trees.json", "calibration.json", "summary.json"} <= {path.name for path in folder.iterdir()}
    kept = read_json(folder / "trees.json")
    rates, rows = kept["calibration"]["acceptance_by_rank"], {row["shape"]: row for row in kept["rows"]}
    assert set(rows) - {"optimum"} == {"chain:2", "reranked:4x2x2", "paths:0.0,1", "Kary:width=1,depth=2", "best of 3"}
    assert rows["chain:2"]["tau, theory"] == pytest.approx(1 + rates[0] + rates[0] ** 2)
    assert rows["reranked:4x2x2"]["tau, theory"] is None
    assert rows["Kary:width=1,depth=2"]["tau, theory"] == rows["chain:2"]["tau, theory"]
    assert kept["shapes"]["paths:0.0,1"] == "Paths([(0,), (1,), (0, 0)])"
    assert all(row["tau"] >= 1 for row in kept["rows"])
    assert "tau, theory" in capsys.readouterr().out
    # Another run measures afresh; one that was interrupted keeps its calibration.
    asked: list[int] = []
    found = Trees.from_dict(kept["calibration"])
    assert trees.calibration_of(folder, False, lambda: asked.append(1) or found) == found
    (folder / "journal.jsonl").touch()
    assert trees.calibration_of(folder, False, lambda: asked.append(2) or found) == found
    assert asked == [1]


def test_trees_refuse_a_shape_that_is_none_before_they_calibrate(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(trees, "calibrate_trees", lambda *_: pytest.fail("it calibrated"))
    argv = [*common(checkpoints, tmp_path), *own(checkpoints, "tree"), "--shapes", "bush:3"]
    with pytest.raises(SystemExit, match=r"^trees: --shapes: shape 'bush:3' is none"):
        trees.main(argv)


@pytest.mark.parametrize("text", ["chain", "kary:2", "bush:3", "paths:1", "grown:4x-1", "chain:x"])
def test_a_shape_that_is_none_is_refused(text):
    for option, given in (("--shape", []), ("--shapes", ["--shapes"])):
        with pytest.raises(ValueError, match=f"^{option}: shape '{text}' is none"):
            shape_of(text, *given)


def test_every_strategy_has_a_tiny_one_whose_law_is_enumerated():
    assert {name for name, _, _ in tiny_strategies()} == set(STRATEGIES)


@pytest.fixture
def few_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enumerate the laws of a chain and of a tree: ``make exactness`` does those of all."""
    few = [strategy for strategy in tiny_strategies() if strategy[0] in ("prompt_lookup", "tree")]
    monkeypatch.setattr(exactness, "tiny_strategies", lambda: few)


@pytest.mark.usefixtures("few_laws")
def test_exactness_passes_and_notices(checkpoints, tmp_path, monkeypatch, capsys):
    argv = [*common(checkpoints, tmp_path), "--strategies", "prompt_lookup", "--batch-sizes", "1", "3"]
    assert exactness.main(argv) == 0
    printed = capsys.readouterr().out
    assert printed.count(" 4/4 ") == 17
    laws = re.findall("^law +([a-z_]+) ", printed, re.MULTILINE)
    assert (laws.count("prompt_lookup"), laws.count("tree")) == (5, 3) == (len(laws) - 3, len(laws) - 5)
    rows = summary_of(tmp_path)["tokens"]
    assert all(row["weight_bytes"] > 0 and row["cache_bytes"] > 0 for row in rows)
    original = exactness.Runner.decode

    def wrong(self: exactness.Runner, case: exactness.Case) -> Any:
        made = original(self, case)
        if case == exactness.Case("coupled", "prompt_lookup", "coupled", 3):
            made.tokens[1][0] ^= 1
        if case == exactness.Case("greedy", "prompt_lookup", "standard", 3):
            raise RuntimeError("no such pass")
        return made

    monkeypatch.setattr(exactness.Runner, "decode", wrong)
    monkeypatch.setattr(exactness, "law_rows", lambda: [{"mode": "law", "problem": ""}])
    assert exactness.main(argv) == 1
    said = capsys.readouterr()
    assert "1 outputs differ" in said.out
    assert "RuntimeError: no such pass" in said.out
    assert "FAILED:\n2 of" in said.err
    assert not (the_folder(tmp_path) / "journal.jsonl").exists(), "what failed is decoded anew"


def test_a_peer_runs_beside_ours(checkpoints, tmp_path):
    argv = [*common(checkpoints, tmp_path), "--strategies", "prompt_lookup", "--peer", "transformers"]
    assert harness.script("compare", "", [*argv, "--batch-size", "2"]) == 0
    arms = summary_of(tmp_path)["arms"]
    assert list(arms) == ["plain", "prompt_lookup", "transformers"]
    assert arms["transformers"]["claim"] == "another program"
    assert arms["transformers"]["prompts"] == 4


@pytest.mark.parametrize("batch_size", [1, 2])
def test_peers_that_draft_run_or_say_why_not(batch_size, checkpoints, tmp_path, capsys):
    names = ["transformers", "transformers:assisted", "transformers:assisted-heuristic", "transformers:lookup"]
    own_options = ["--small-transformer-model", str(checkpoints / "draft"), "--batch-size", str(batch_size)]
    argv = [*common(checkpoints, tmp_path), *own_options, "--strategies", "prompt_lookup", "--peer", *names]
    assert harness.script("compare", "", argv) == 0
    summary = summary_of(tmp_path)
    refused = summary["provenance"]["refused"]
    if batch_size == 1:
        assert not refused
        assert all(summary["arms"][name]["identical"] == 4 for name in names)
        return
    assert list(refused) == names[1:]
    assert all("batch" in words for words in refused.values())
    printed = capsys.readouterr().out
    assert f"refused: {refused[names[1]]}" in " ".join(printed.split())


def test_a_peer_obeys_no_settings_of_the_checkpoint(checkpoints, tmp_path):
    folder = tmp_path / "target"
    shutil.copytree(checkpoints / "target", folder)
    settings = read_json(folder / "generation_config.json")
    oracle, prompt = oracles.load(folder), NamedPrompt("p", "a", TEXT)
    wanted = SpeculativeDecoder(oracle).generate([TEXT], max_new_tokens=10).tokens
    (folder / "generation_config.json").write_text(json.dumps(settings | {"repetition_penalty": 9.0}), encoding="utf-8")
    assert peers.TransformersArm("peer", folder, oracle, oracle.dtype).run([prompt], [(0, 0)], 10).tokens == wanted


def test_the_key_of_a_run_covers_the_files_that_its_options_name(tmp_path):
    model, text = tmp_path / "model", tmp_path / "text.py"
    model.mkdir()
    (model / "weights").write_bytes(b"one")
    text.write_text("one", encoding="utf-8")
    arguments = {"oracle": str(model), "ngram.train_on": f"{text},{text}", "prompts": "p.jsonl", "seed": 0}
    keys = [fingerprint(arguments, ["x"])]
    (model / "weights").write_bytes(b"other")
    keys.append(fingerprint(arguments, ["x"]))
    text.write_text("other", encoding="utf-8")
    keys += [fingerprint(arguments, ["x"]), fingerprint(arguments, ["y"]), fingerprint(arguments | {"seed": 1}, ["x"])]
    assert len(set(keys)) == 5
    assert fingerprint(arguments | {"out": "elsewhere"}, ["x"]) == keys[2]
    # A sweep's units are known by this key before their prompts are read.
    keys = [fingerprint(arguments | {"prompts": str(text)}, [])]
    text.write_text("a longer one", encoding="utf-8")
    assert fingerprint(arguments | {"prompts": str(text)}, []) not in keys


def test_a_text_that_no_path_could_be_names_no_file_and_an_empty_one_no_folder(tmp_path, monkeypatch):
    for value in ("Be brief. " * 60, ",".join(["words"] * 1000), "a\0b"):
        assert fingerprint({"system": value}, []) != fingerprint({"system": "Be brief."}, [])
    monkeypatch.chdir(tmp_path)
    arguments = {"system": "", "ngram.train_on": "a.txt,"}
    key = fingerprint(arguments, [])
    (tmp_path / "file").touch()
    assert fingerprint(arguments, []) == key


def test_another_machine_does_not_go_on_with_times_of_this_one(monkeypatch):
    plan = study.Plan("compare", {"oracle": "code", "out": "runs", "device": "cpu"})
    here = study.folder_of(plan, [])
    assert study.folder_of(plan, []) == here
    for part in ("processor", "device_name"):
        with monkeypatch.context() as patched:
            patched.setattr(study, part, lambda *_: "another one")
            assert study.folder_of(plan, []) != here
    # Nor with those of compiled code where there is none any more.
    monkeypatch.setattr(shared_arguments, "best_kernels", lambda: REFERENCE)
    assert study.folder_of(plan, []) != here


UNUSABLE = {
    "prompt_lookup --oracle nonsense": "prompt_lookup: 'nonsense' is neither",
    "prompt_lookup --prompts nowhere.jsonl": "does not exist",
    "prompt_lookup --temperature -1": "temperature",
    "prompt_lookup --seed 9223372036854775808": "argument --seed: must be a whole number of 64 bits",
    "quantized --draft-weights int3": "argument --draft-weights: expected one of float32, bfloat16, ",
    "quantized --draft-weights int8-dynamic --dtype float64": "quantized: --draft-weights int8-dynamic: "
    "weights='int8-dynamic' needs float32 arithmetic on a CPU",
    "compare --strategies prompt_lookup --against ngram": "compare: --against: 'ngram' is none of the arms: plain, "
    "prompt_lookup",
}


@pytest.mark.parametrize(("words", "message"), UNUSABLE.items(), ids=UNUSABLE)
def test_unusable_arguments_end_with_the_reason(words, message, checkpoints, tmp_path, capsys):
    name, *more = words.split()
    with pytest.raises(SystemExit) as stop:
        harness.run(harness.plan_of(name, [*common(checkpoints, tmp_path), *more]))
    assert message in f"{capsys.readouterr().err} {stop.value}"


@pytest.mark.parametrize("argv", [["--bogus"], ["--batch-size", "0"], ["--dtype", "int8"], ["--order", "3"]])
def test_unknown_options_are_errors(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        harness.script("prompt_lookup", "", argv)
    assert stop.value.code == 2
    assert argv[0] in capsys.readouterr().err


def test_the_same_experiment_run_twice_at_once_is_refused_the_second_time(checkpoints, tmp_path, monkeypatch):
    working, refused = EngineArm.run, []

    def twice(self: EngineArm, prompts: Sequence[NamedPrompt], seeds: Any, max_new_tokens: int) -> Measurement:
        if not refused:
            with pytest.raises(SystemExit) as stop:
                lookup(checkpoints, tmp_path, "--fresh")
            refused.append(str(stop.value))
        return working(self, prompts, seeds, max_new_tokens)

    monkeypatch.setattr(EngineArm, "run", twice)
    assert lookup(checkpoints, tmp_path) == 0
    assert f"prompt_lookup: {the_folder(tmp_path)} is held by another process" in refused[0]
    assert len((the_folder(tmp_path) / "units.jsonl").read_text(encoding="utf-8").splitlines()) == 4


@pytest.mark.parametrize(
    "main", [harness.script, exactness.main, trees.main, train_head.main], ids=lambda main: main.__module__
)
def test_a_folder_that_cannot_be_written_ends_a_script_before_it_computes(main, checkpoints, tmp_path, monkeypatch):
    def load(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a checkpoint was loaded")

    monkeypatch.setattr(oracles, "load", load)
    monkeypatch.setattr(train_head, "load_trainable", load)
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "runs"
    own_way = main is train_head.main
    argv = ["--own-text", "own.safetensors", "--out", str(out)] if own_way else common(checkpoints, out)
    with pytest.raises(SystemExit, match=rf"--out: {out}.* cannot be written: .*give a folder that can be"):
        main("compare", "", argv) if main is harness.script else main(argv)


def test_tables_of_a_form_that_is_none_are_refused_before_a_script_computes(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_TABLES", "html")
    with pytest.raises(SystemExit, match="exactness: SPECDEC_TABLES=html: give markdown or latex, or leave it out"):
        exactness.main(common(checkpoints, tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def misfits(checkpoints: Path, tmp_path: Path) -> Path:
    """Return a file of five prompts, of which the second and the last do not fit the context."""
    rows = [{"id": f"p{i}", "kind": "a", "prompt": TEXT * (40 if i in (1, 4) else i + 1)} for i in range(5)]
    return write_rows(tmp_path / "misfits.jsonl", rows)


def test_prompts_that_do_not_fit_fail_by_name_and_the_others_go_on(checkpoints, tmp_path, misfits, runs, capsys):
    assert lookup(checkpoints, tmp_path / "out", "--prompts", str(misfits), "--batch-size", "2") == 1
    said = capsys.readouterr()
    assert "3/3" in said.out
    for name in ("p1", "p4"):
        assert re.search(rf"prompts \['{name}'\]: has \d+ tokens and the oracle's context is 256", said.err)
    measured = {prompts for arm, prompts, tokens in runs if tokens == 10 and arm == "plain"}
    assert measured == {("p0", "p2"), ("p3",)}
    entries = (the_folder(tmp_path / "out") / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["error"] is None for line in entries].count(False) == 2


def test_the_others_keep_their_seeds_when_a_prompt_does_not_fit():
    prompts = [NamedPrompt(str(i), "abb"[i % 3], "x") for i in range(7)]
    units = units_of(prompts, 2, {1: "too long", 3: "too long"})
    assert [(unit.kind, unit.numbers, unit.problem) for unit in units] == [
        ("a", (0, 6), None), ("b", (2, 4), None), ("b", (5,), None), ("b", (1,), "too long"), ("a", (3,), "too long")
    ]  # fmt: skip
    assert [unit.index for unit in units] == [0, 1, 2, 3, 4]
    assert all(unit.prompts == tuple(prompts[i] for i in unit.numbers) for unit in units)


def test_when_no_prompt_fits_all_fail_by_name(checkpoints, tmp_path, capsys):
    path = write_rows(tmp_path / "long.jsonl", [{"id": "long", "prompt": TEXT * 40}])
    assert lookup(checkpoints, tmp_path / "out", "--prompts", str(path)) == 1
    assert "prompts ['long']: has " in capsys.readouterr().err


def test_exactness_goes_on_without_the_prompts_that_do_not_fit(checkpoints, tmp_path, misfits, monkeypatch, capsys):
    monkeypatch.setattr(exactness, "law_rows", lambda: [{"mode": "law", "problem": ""}])
    argv = [*common(checkpoints, tmp_path / "out"), "--strategies", "prompt_lookup", "--batch-sizes", "2"]
    argv += ["--prompts", str(misfits)]
    asked: list[tuple[int, Any]] = []
    original = SpeculativeDecoder.generate

    def generate(self: SpeculativeDecoder, prompts: Any, *arguments: Any, **options: Any) -> Any:
        asked.append((len(prompts), arguments[2]))
        return original(self, prompts, *arguments, **options)

    monkeypatch.setattr(SpeculativeDecoder, "generate", generate)
    assert exactness.main(argv) == 1
    said = capsys.readouterr()
    assert " 3/3 " in said.out
    assert "FAILED" in said.err
    for name in ("p1", "p4"):
        assert re.search(rf"'{name}'\W+ has \d+ tokens and the oracle's context is 256", said.err)
        assert len(re.findall(rf"\b{name}\b", said.err)) == 1
    assert asked
    assert all(what == (3, [(0, 0), (0, 2), (0, 3)]) for what in asked)
    assert len(summary_of(tmp_path / "out")["problems"]) == 2
    long = write_rows(tmp_path / "long.jsonl", [{"id": "long", "prompt": TEXT * 40}])
    with pytest.raises(SystemExit, match=r"none of the prompts can be decoded.*'long'.* has .*context"):
        exactness.main([*argv, "--prompts", str(long)])


def test_trees_need_a_token_to_draft(checkpoints, tmp_path):
    with pytest.raises(SystemExit, match=r"^trees: --max-new-tokens must be 2 or more"):
        trees.main([*common(checkpoints, tmp_path), *own(checkpoints, "tree"), "--max-new-tokens", "1"])


def test_trees_are_calibrated_on_prompts_that_fit(checkpoints, tmp_path, misfits, monkeypatch):
    argv = [*common(checkpoints, tmp_path / "out"), *own(checkpoints, "tree"), "--prompts", str(misfits)]
    argv += ["--shapes", "chain:2", "--sizes", "--max-nodes", "2", "--calibrate-on", "2", "--batch-size", "2"]
    asked: list[tuple[str, ...]] = []
    original = trees.calibrate_trees

    def calibrate(arguments: Any, oracle: Any, model: Any, prompts: Sequence[NamedPrompt]) -> Trees:
        asked.append(tuple(prompt.name for prompt in prompts))
        return original(arguments, oracle, model, prompts)

    monkeypatch.setattr(trees, "calibrate_trees", calibrate)
    assert trees.main(argv) == 1
    assert asked == [("p0", "p2", "p3")]
    kept = read_json(the_folder(tmp_path / "out") / "trees.json")
    assert "chain:2" in {row["shape"] for row in kept["rows"]}


def test_prompts_of_one_name_stay_apart_in_the_records(checkpoints, tmp_path):
    from datasets import Dataset

    rows = [{"id": name, "prompt": TEXT * (i + 1)} for i, name in enumerate("xyx")]
    path = write_rows(tmp_path / "equal.jsonl", rows)
    assert lookup(checkpoints, tmp_path / "out", "--prompts", str(path), "--batch-size", "3") == 0
    records = Dataset.from_parquet(str(the_folder(tmp_path / "out") / "records.parquet")).to_dict()
    assert set(records["prompt"]) == {"x (row 0)", "y", "x (row 2)"}


def test_a_broken_journal_ends_a_run_before_it_computes(checkpoints, tmp_path, monkeypatch):
    working = Journal.append

    def interrupted(self: Journal, entry: dict[str, Any]) -> None:
        working(self, entry)
        if len(self.entries) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lookup(checkpoints, tmp_path)
    path = the_folder(tmp_path) / JOURNAL
    path.write_text(path.read_text(encoding="utf-8").replace('{"unit"', '{"unit', 1), encoding="utf-8")
    monkeypatch.setattr(harness, "load_oracle", lambda arguments: pytest.fail("a checkpoint was loaded"))
    with pytest.raises(SystemExit, match=rf"prompt_lookup: {path}, line 1: broken; .*--fresh"):
        lookup(checkpoints, tmp_path)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2


STUDIES = {
    "harness.running": "--strategies prompt_lookup --trace 1",
    "exactness": "--strategies prompt_lookup --batch-sizes 1",
    "studies.crossover.__main__": "--strategy prompt_lookup --draft-lengths 1 2 --batch-sizes 1",
    "load.__main__": "--arms prompt_lookup --rates 30 --seconds 0.1 --batch-size 2",
    "advise.__main__": "--strategies prompt_lookup --batch-sizes 1 --temperatures 0 --longest 2",
}


@pytest.mark.parametrize(("name", "words"), STUDIES.items(), ids=STUDIES)
@pytest.mark.usefixtures("few_laws")
def test_an_experiment_is_complete_before_anybody_reads_of_it(name, words, checkpoints, tmp_path, monkeypatch):
    def unread(*_: Any) -> None:
        if list(tmp_path.rglob("*.jsonl")):
            raise BrokenPipeError

    module = importlib.import_module(f"experiments.{name}")
    monkeypatch.setattr(module, "show", unread)
    argv = [*common(checkpoints, tmp_path), *words.split()]
    argv[argv.index("--max-new-tokens") + 1] = "24"
    with pytest.raises(BrokenPipeError):
        harness.script("compare", "", argv) if module is harness else module.main(argv)
    folder = the_folder(tmp_path)
    assert ((folder / "units.jsonl").exists(), (folder / JOURNAL).exists()) == (True, False)
    assert len([*folder.glob("nodes/*/tokens.json")]) == ("--trace" in words)
