"""Golden cases give what the committed file says, whatever runs before them and on how many threads.

The quick suite runs a part in which all occurs together, two and two; ``make exactness`` runs the whole.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import drafts
from experiments.harness.tiny import tiny_strategies
from experiments.strategies import STRATEGIES
from specdec.contracts import StepInfo
from specdec.engine.result import Result
from specdec.stats import Records
from specdec.verify import RULES
from tests.golden import hashes
from tests.golden.__main__ import main
from tests.golden.cases import BATCHES, CASES, MAKES, SAMPLINGS, Case, covering
from tests.golden.running import PARTS, line, run
from tests.golden.worlds import world
from tests.support.backends import needed_native
from tests.support.pairwise import WANTS_LONG
from tests.support.registry import OTHERS, POLICIES, SHAPES, SOURCES

ROOT = Path(__file__).parents[2]
QUICK = covering(CASES)
LONG = sorted(set(CASES).difference(QUICK), key=str) if WANTS_LONG else []


def place_of(case: Case) -> str:
    return f"{case.world}/{case.source}"


def by_source(cases: Sequence[Case]) -> list[object]:
    """Return the cases of each world and source as a parameter of tests."""
    groups = groupby(sorted(cases, key=place_of), place_of)
    return [pytest.param(tuple(group), id=place) for place, group in groups]


def check(cases: Sequence[Case]) -> None:
    if cases[0].world != "table":
        needed_native()
    assert not (changed := hashes.changes(cases)), "\n".join(changed)


@pytest.mark.parametrize("cases", by_source(QUICK))
def test_a_part_that_covers_all_pairs_gives_the_committed_hashes(cases):
    check(cases)


@pytest.mark.long
@pytest.mark.parametrize("cases", by_source(LONG))
def test_the_rest_gives_the_committed_hashes(cases):
    check(cases)


def test_the_file_holds_exactly_the_cases():
    assert hashes.gaps() == [], "python -m tests.golden add writes what is new: see docs/internals/golden.md"


def test_every_source_policy_shape_rule_batch_and_sampling_has_cases():
    found = {source.partition(": ")[0] for source in MAKES["table"] | MAKES["tiny"]}
    assert set(drafts.__all__) | set(SOURCES) | set(OTHERS) <= found
    assert {f"policy: {name}" for name in POLICIES} <= set(MAKES["table"]) & set(MAKES["tiny"])
    for kind in ("shape", "n-gram shape"):
        assert {f"{kind}: {name}" for name in SHAPES} <= set(MAKES["table"]) & set(MAKES["tiny"])
    for cases in (CASES, QUICK):
        assert {case.source for case in cases} == {source for makes in MAKES.values() for source in makes}
        assert {case.rule for case in cases} == set(RULES)
        assert {case.batch for case in cases} == set(BATCHES)
        assert {case.sampling for case in cases} == set(SAMPLINGS)


def test_every_strategy_of_the_experiments_has_cases():
    models, strategies = world("table", "eager").models, tiny_strategies()
    made = {type(make(models)) for make in MAKES["tiny"].values()}
    assert {name for name, _, source in strategies if type(source) in made} == set(STRATEGIES)


def test_the_quick_part_covers_every_pair_that_occurs():
    wanted = {pair for case in CASES for pair in case.pairs}
    assert {pair for case in QUICK for pair in case.pairs} == wanted
    for row in {case.source.partition(": ")[0] for case in CASES}:
        mine = [case for case in QUICK if case.source.partition(": ")[0] == row]
        assert ({case.batch for case in mine}, {case.sampling for case in mine}) == (set(BATCHES), set(SAMPLINGS))


SAMPLE = [Case("table", "SmallTransformer: as asked", "standard", batch, "sampled") for batch in BATCHES]
SAMPLE += [
    Case("tiny", "shape: Kary", "multi_draft", 8, "penalties"),
    Case("tiny", "Lookahead: default", "coupled", 8, "mixed"),
]


@pytest.mark.parametrize(("threads", "order"), [(1, -1), (2, 1)])
def test_neither_threads_nor_order_change_a_hash(threads, order, set_threads):
    set_threads(threads)
    check(SAMPLE[:2][::order])
    check(SAMPLE[2:][::order])


@pytest.mark.parametrize("place", ["table", "tiny"])
def test_runs_end_by_eos_and_stops_within_blocks_and_at_the_contexts_end(place):
    """One case has them all: requests that join, blocks cut by EOS and by a stop, drafts cut by the budget."""
    result = run(Case(place, "SmallTransformer: as asked", "standard", 8, "sampled"), "eager")
    columns = result.records.columns()
    assert {"eos", "stop"} <= set(result.stats.truncated)
    assert set(result.finish_reasons) == {"eos", "stop", "length"}
    assert any(columns["shortened"])
    assert len(result.tokens) > 8 >= max(columns["num_rows"])
    ends = {len(ids) + len(new) for ids, new in zip(world(place, "eager").prompts, result.tokens, strict=True)}
    assert max(ends) == world(place, "eager").target.max_context
    assert 0 < result.stats.acceptance_rate < 1


def told(result: Result, changed: Result) -> list[str]:
    """Return the parts whose hashes tell two results apart."""
    parts = zip(PARTS, line(result).split(), line(changed).split(), strict=True)
    return [part for part, one, other in parts if one != other]


class Changed(Records):
    """Records of which one number is another."""

    def columns(self) -> dict[str, list[object]]:
        columns = super().columns()
        return columns | {"num_children_at_stop": [1 + columns["num_children_at_stop"][0]]}


def test_each_part_tells_its_own_change_and_none_tells_times():
    case = next(case for case in CASES if case.world == "table" and case.return_logprobs)
    result = run(case, "eager")
    infos: Sequence[StepInfo] = result.records._infos
    slower = [replace(info, seconds=dict.fromkeys(info.seconds, 9.0)) for info in infos]
    seconds = dict.fromkeys(result.stats.seconds, 9.0)
    stats = replace(result.stats, seconds=seconds, first_token_seconds=9.0)
    assert told(result, replace(result, records=Records(slower), stats=stats)) == []
    assert told(result, replace(result, finish_reasons=["stop", *result.finish_reasons[1:]])) == ["ids"]
    assert told(result, replace(result, records=Changed(infos))) == ["records"]
    one = replace(result.stats.requests[0], num_scouts=1)
    assert told(result, replace(result, stats=replace(stats, requests=(one, *stats.requests[1:])))) == ["stats"]
    first, *rest = result.logprobs[0]
    moved = [[np.nextafter(first, 1.0).item(), *rest], *result.logprobs[1:]]
    assert told(result, replace(result, logprobs=moved)) == ["bits"]
    assert told(result, replace(result, logprobs=[[first + 1e-6, *rest], *result.logprobs[1:]])) == ["logprobs", "bits"]


def test_differences_name_the_case_and_the_parts():
    wanted = {"a": "1 2 3 4", "b": "1 2 3 4", "c": "1 2 3 4"}
    found = {"a": "1 2 3 4", "b": "1 0 3 0", "d": "1 2 3 4"}
    assert hashes.differences(wanted, found) == ["b: other records, logprobs", "c: gone", "d: new"]


def test_the_committed_file_has_a_line_for_each_case(tmp_path, monkeypatch):
    monkeypatch.setattr(hashes, "FILE", tmp_path / "hashes.json")
    hashes.write({"a/b/c/1/d": "1 2 3 4 5", "a/b/c/8/d": "5 6 7 - -"})
    lines = ['"a/b/c": {', '"1/d": "1 2 3 4",', '"8/d": "5 6 7 -"']
    assert hashes.FILE.read_text().splitlines()[2:5] == lines
    assert hashes.read() == {"a/b/c/1/d": "1 2 3 4", "a/b/c/8/d": "5 6 7 -"}


def test_cases_that_the_file_lacks_are_added_and_no_line_changes(tmp_path, monkeypatch):
    needed_native()
    kept, missing = hashes.read(), [str(case) for case in SAMPLE[:2]]
    monkeypatch.setattr(hashes, "FILE", tmp_path / "hashes.json")
    hashes.write({name: "0 0 0 0 0" for name in kept if name not in missing})
    assert main(["add"]) is None
    found = hashes.read()
    assert list(found) == [str(case) for case in CASES]
    assert {name for name, line in found.items() if line != "0 0 0 0"} == set(missing)
    assert {name: found[name] for name in missing} == {name: kept[name] for name in missing}


def test_check_fails_with_the_names_of_what_differs(monkeypatch, capsys):
    kept = hashes.read()
    name = str(SAMPLE[0])
    assert main(["check", "--only", name]) is None
    monkeypatch.setattr(hashes, "read", lambda: kept | {name: "0 " + kept[name].partition(" ")[2]})
    assert main(["check", "--only", name]) == f"{name}: other ids"
    assert main(["check", "--only", "nothing"]) == "no case is called 'nothing'"
    assert capsys.readouterr().out.splitlines() == ["1 cases, 0 differ", "1 cases, 1 differ"]


def command(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tests.golden", *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("backend", ["native", "eager", "no-compiler"])
def test_a_checkout_is_compared_with_another_one(backend, tmp_path):
    for folder in ("exactspec", "specdec", "oracles", "experiments", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    shutil.copytree(ROOT / "drafts", tmp_path / "drafts")
    lookup = tmp_path / "drafts" / "prompt_lookup.py"
    lookup.write_text(lookup.read_text().replace('name = "prompt_lookup"', 'name = "another"'))
    done = command("compare", str(tmp_path), "--backend", backend, "--only", "table/[PN]*/standard/8/greedy")
    assert done.stdout == "5 cases, 2 differ\n", done.stderr
    assert done.stderr.splitlines()[-2:] == [
        f"table/PromptLookup: {way}/standard/8/greedy: other records, stats" for way in ("last", "first")
    ]
    assert done.returncode == 1


@pytest.mark.long
@pytest.mark.parametrize("lanes", [8, 4])
def test_narrower_registers_change_no_hash(lanes):
    needed_native()
    done = command("check", "--only", "tiny/S*/8/*", CXX=f"c++ -DSPECDEC_LANES={lanes}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(", 0 differ\n")


@pytest.mark.long
def test_without_a_compiler_tables_have_the_committed_hashes():
    done = command("check", "--only", "t*/SmallTransformer*/8/*", CXX="no-such-program")
    assert done.stdout.startswith("tables only, no native pass here: ")
    assert done.returncode == 0, done.stderr


def test_the_legend_names_the_parts():
    assert json.loads(hashes.FILE.read_text())[hashes.LEGEND] == " ".join(PARTS[:-1])
    assert {len(hashed.split()) for hashed in hashes.read().values()} == {len(PARTS) - 1}
