"""A grid of options on several workers: one table, nothing lost, nothing twice, whoever dies."""

import csv
import json
import os
import pwd
import re
import runpy
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet

from experiments.harness.study import Plan
from experiments.sweep import working
from experiments.sweep.__main__ import main
from experiments.sweep.grid import Grid, read_grid
from experiments.sweep.sweep_results import rows_of
from experiments.sweep.working import DONE, Seat, Worker, result_of
from specdec.system import LOCK, hold
from tests.support.pairwise import first_of
from tests.support.processes import started, status_of
from tests.support.runs.experiments import a_file, quick_runs, read_json, write_rows


def test_a_grid_is_every_combination(checkpoints, tmp_path):
    grid = read_grid(a_file(tmp_path, checkpoints))
    assert [unit.chosen for unit in grid.units] == [
        {"num-draft-tokens": length, "temperature": heat} for length in (1, 2) for heat in (0, 0.8)
    ]
    plan = grid.plan(grid.units[3], tmp_path, 1)
    found = (plan.name, plan.arguments["temperature"], plan.arguments["prompt_lookup.num_draft_tokens"])
    assert found == ("prompt_lookup", 0.8, 2)
    text = "experiment = 'ngram'\n[options]\nignore-eos = true\n[grid]\nwide = [false]"
    grid = read_grid(a_file(tmp_path, checkpoints, text=text))
    asked = grid.plan(grid.units[0], tmp_path, 1).arguments
    assert (asked["ignore_eos"], asked["wide"]) == (True, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grid", "is no readable TOML file"),
        ("experiment = 'other'\n[grid]\nseed = [1]", "experiment is 'other'; choose one of compare, "),
        ("[grids]\nseed = [1]", r"\['grids'\]; known: experiment, grid, options. Options of all units go under .o"),
        ("[grid]\n", "give .grid. options with a list of values each; there are none"),
        ("grid = [1]", "are tables of options"),
        ("[options]\nthreads = 3\n[grid]\nseed = [3]", "threads cannot be among the options"),
        ("[grid]\nseed = 3", r"a list of values each; \['seed'\]"),
    ],
)
def test_files_that_make_no_sense_are_refused(text, message, tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match=f"sweep: .*{message}"):
        main([str(path), "--out", str(tmp_path / "out")])


def test_an_option_that_does_not_exist_is_refused_before_anything_runs(tmp_path, capsys):
    path = tmp_path / "grid.toml"
    for line, message in (
        ("sede = [1, 2]", "unrecognized arguments: --sede"),
        ("temperature = [0, -1]", "lie in [0, inf)"),
    ):
        path.write_text(f"[grid]\n{line}", encoding="utf-8")
        with pytest.raises(SystemExit):
            main([str(path), "--out", str(tmp_path / "out")])
        printed = capsys.readouterr().err
        assert message in printed
        assert f"so says {path}, unit 000" in printed
    assert not (tmp_path / "out").exists()


def test_one_table_of_all_units_which_are_not_done_twice(checkpoints, tmp_path, capsys):
    path, out = a_file(tmp_path, checkpoints), tmp_path / "out"
    assert main([str(path), "--out", str(out), "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert read_json(out / "0000" / DONE)["chosen"] == {"num-draft-tokens": 1, "temperature": 0}
    assert "Speed-up over plain decoding" in (out / "0000" / working.PRINTED).read_text(encoding="utf-8")
    rows = rows_of(read_grid(path), out)
    assert [(row["num-draft-tokens"], row["temperature"]) for row in rows] == [(1, 0), (1, 0.8), (2, 0), (2, 0.8)]
    checks = [(row["passed"], row["num_prompts"], row["check"]) for row in rows]
    assert checks == [(4, 4, "as plain"), (4, 4, "sound draws")] * 2
    assert all(row["block_efficiency"] >= 1 for row in rows)
    told = r"Fastest of 4: prompt_lookup with num-draft-tokens [12], temperature 0(\.8)?: decoding alone \d"
    assert re.match(told, printed)
    assert "16 of 16 outputs are as they should be." in " ".join(printed.split())
    assert len(re.findall("^ *[12] .*prompt_lookup", printed, re.MULTILINE)) == 4
    assert parquet.read_table(out / "sweep.parquet").to_pylist() == rows
    with (out / "sweep.csv").open(encoding="utf-8", newline="") as file:
        kept = [*csv.DictReader(file)]
    assert [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows] == kept
    times = {file: file.stat().st_mtime_ns for file in out.rglob(DONE)}
    assert main([str(path), "--out", str(out), "--threads", "1"]) == 0
    assert {file: file.stat().st_mtime_ns for file in out.rglob(DONE)} == times
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("[1, 2]", "[1, 2, 3]") + "# longer\n", encoding="utf-8")
    assert main([str(path), "--out", str(out), "--threads", "1"]) == 0
    assert {file: file.stat().st_mtime_ns for file in times} == times
    assert len(rows_of(read_grid(out / "grid.toml"), out)) == 6
    path.write_text(text + "seed = [1]\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"holds unit 0000 .*; here it is .* --seed 1: give another"):
        main([str(path), "--out", str(out)])


def test_a_unit_that_fails_is_told_and_done_again_on_request(checkpoints, tmp_path, capsys, monkeypatch):
    path, out = a_file(tmp_path, checkpoints), tmp_path / "out"
    sound = working.run

    def run(plan: Plan) -> int:
        if plan.arguments["temperature"] == 0:
            raise RuntimeError("no luck")
        return sound(plan)

    monkeypatch.setattr(working, "run", run)
    argv = [str(path), "--out", str(out), "--threads", "1"]
    assert main(argv) == 1
    captured = capsys.readouterr()
    assert "0000 {'num-draft-tokens': 1, 'temperature': 0}: RuntimeError: no luck" in captured.err
    assert len(rows_of(read_grid(path), out)) == 2
    monkeypatch.setattr(working, "run", sound)
    assert main(argv) == 1
    assert main([*argv, "--retry"]) == 0
    assert len(rows_of(read_grid(path), out)) == 4


def seat(threads: int | None = 1) -> Seat:
    """Return the place of a worker on one core."""
    return replace(Seat.here(threads), cores=Seat.here(threads).cores[:1])


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder of claims of this test alone; torch has its threads again at the end."""
    monkeypatch.setattr(working, "HELD", tmp_path / "held")
    threads = torch.get_num_threads()
    yield tmp_path / "held"
    torch.set_num_threads(threads)


def test_no_two_workers_have_a_core(held):
    cores = os.sched_getaffinity(0)
    with seat().take() as first, seat().take() as second:
        assert (first, second) == (True, False)
        assert os.sched_getaffinity(0) == {*seat().cores}
    assert os.sched_getaffinity(0) == cores
    with seat().take() as again:
        assert again
    with replace(seat(), threads=2).take() as too_few:
        assert not too_few
    assert not [*held.rglob(LOCK)]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads cannot be listed")
def test_threads_that_run_already_move_with_their_worker(held):
    def cores_of(thread: threading.Thread) -> set[int]:
        assert thread.native_id is not None
        return os.sched_getaffinity(thread.native_id)

    cores, ends = os.sched_getaffinity(0), threading.Event()
    pooled = threading.Thread(target=ends.wait)
    pooled.start()
    try:
        for core in cores:
            with replace(seat(), cores=(core,)).take():
                assert cores_of(pooled) == os.sched_getaffinity(0) == {core}
        assert cores_of(pooled) == cores
    finally:
        ends.set()
        pooled.join()


def test_each_worker_of_torchrun_has_an_equal_share_of_the_cores(monkeypatch):
    cores = os.sched_getaffinity(0)
    assert Seat.here(None) == Seat(0, len(cores), tuple(sorted(cores)))
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "10000")
    assert Seat.here(None) == Seat(1, 1, tuple(sorted(cores)))


def test_more_threads_than_cores_are_refused(checkpoints, tmp_path):
    path, cores = a_file(tmp_path, checkpoints), len(os.sched_getaffinity(0))
    with pytest.raises(SystemExit, match=f"--threads: {cores + 1}, and a worker may run on {cores} cores here"):
        main([str(path), "--out", str(tmp_path / "out"), "--threads", str(cores + 1)])


def test_a_user_whom_the_machine_has_no_name_for_can_hold_cores(monkeypatch):
    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert runpy.run_path(working.__file__)["HELD"].name == f"specdec-held-{os.geteuid()}"


def nothing() -> None:
    """Stand for a pause in which nothing changes."""


def test_a_worker_waits_until_cores_and_the_device_are_free(checkpoints, tmp_path, held, monkeypatch, capsys):
    grid, done, waited = read_grid(a_file(tmp_path, checkpoints)), tmp_path / "out", []
    others, pauses = ExitStack(), iter([nothing, lambda: others.pop_all().close()] * 2)
    monkeypatch.setattr(working, "_device", lambda _: held / "cuda-0")

    def wait(_: float) -> None:
        assert not list(done.rglob(DONE))
        waited.append(sorted(path.parent.name for path in held.rglob(LOCK)))
        next(pauses)()
        if len(waited) == 2:
            others.enter_context(hold(held / "cuda-0", "--out"))

    monkeypatch.setattr(working.time, "sleep", wait)
    others.enter_context(seat().take())
    Worker(grid, done, seat(), retry=False).work()
    assert waited == [[f"core-{seat().cores[0]}"]] * 2 + [["cuda-0"]] * 2
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("waiting")] == [
        f"waiting for 1 of the cores {[*seat().cores]}: other workers hold too many, in {held}",
        f"waiting for 4 units: other workers hold them, in {done}, or their device, in {held}",
    ]
    speeds = {row[name] for row in rows_of(grid, done) for name in ("decoding_alone", "end_to_end")}
    assert speeds.isdisjoint({None})


def test_workers_that_would_do_each_others_units_again_are_refused(checkpoints, tmp_path, held):
    grid, out = read_grid(a_file(tmp_path, checkpoints)), tmp_path / "out"
    one, place = Worker(grid, out, seat(), retry=False), out / "0000"
    place.mkdir(parents=True)
    result = {"key": "another", "error": None, "time": time.time() - 3600}
    (place / DONE).write_text(json.dumps(result), encoding="utf-8")
    assert grid.units[0] in one._open_units(), "an earlier sweep's unit is done again"
    (place / DONE).write_text(json.dumps({**result, "time": time.time()}), encoding="utf-8")
    with pytest.raises(ValueError, match="another worker just did 0000 with other code, files or threads"):
        one.work()


@pytest.mark.parametrize(
    ("name", "visible", "wanted"),
    [
        ("cpu", "0", None),
        ("cuda", None, "cuda-0"),
        ("cuda:1", None, "cuda-1"),
        ("cuda", "3,2", "cuda-3"),
        ("cuda:1", "3,2", "cuda-2"),
        ("cuda:1", "3, 2", "cuda-2"),
        ("cuda", " ", "cuda-0"),
        ("mps", None, "mps-0"),
    ],
)
def test_workers_hold_a_device_by_its_number_on_the_machine(name, visible, wanted, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = working._device(name)
    assert (None if found is None else found.name) == wanted


def test_a_sweep_of_recorded_text_has_no_times(checkpoints, tmp_path, capsys):
    text = 'experiment = "prompt_lookup"\n[options]\noracle = "recorded:{prompts}"\n[grid]\nprompts = ["{prompts}"]\n'
    rows = [{"prompt": f"def f{i}(x):", "completion": f" return f{i}(x)"} for i in range(2)]
    records, path = write_rows(tmp_path / "records.jsonl", rows), tmp_path / "grid.toml"
    path.write_text(text.format(prompts=records), encoding="utf-8")
    assert main([str(path), "--out", str(tmp_path / "out"), "--threads", "1"]) == 0
    (row,) = rows_of(read_grid(path), tmp_path / "out")
    assert (row["decoding_alone"], row["end_to_end"]) == (None, None)
    assert row["prompts"] == str(records), "an axis keeps its name"
    assert (row["passed"], row["num_prompts"], row["check"]) == (2, 2, "as plain")
    assert "No model ran, so that times mean nothing. 2 of 2 outputs" in capsys.readouterr().out


def sweep(argv: list[str]) -> int:
    with quick_runs():
        return main(argv)


def worker(path: Path, out: Path) -> ForkServerProcess:
    return started(sweep, [str(path), "--out", str(out), "--threads", "1"])


@pytest.mark.parametrize("count", first_of(2, 3, 4))
def test_the_units_of_a_killed_worker_are_done_by_the_others(count, checkpoints, tmp_path):
    path, out = a_file(tmp_path, checkpoints, new=20), tmp_path / "out"
    out.mkdir()
    grid = read_grid(path)
    with hold(out / grid.units[-1].name, "--out"):  # held here, so that nobody can end before the kill
        workers = [worker(path, out) for _ in range(count)]
        victim = killed_at_work(out, {process.pid for process in workers})
    ended = {process.pid: status_of(process) for process in workers}
    assert ended.pop(victim) == -signal.SIGKILL
    assert list(ended.values()) == [0] * (count - 1)
    results = [result_of(out, unit) for unit in grid.units]
    assert all(found is not None and found["error"] is None for found in results)
    assert all(row["passed"] == row["num_prompts"] == 4 for row in rows_of(grid, out))
    assert len(rows_of(grid, out)) == 4
    assert not list(out.rglob(LOCK))
    if count == 4:
        alone = worker(path, tmp_path / "alone")
        assert status_of(alone) == 0
        assert untimed(grid, out) == untimed(grid, tmp_path / "alone")


def untimed(grid: Grid, out: Path) -> list[dict[str, Any]]:
    """Return the rows of a sweep's table without what the clock says."""
    timed = ("decoding_alone", "end_to_end", "tokens_per_second")
    return [{key: row[key] for key in row if not key.startswith(timed)} for row in rows_of(grid, out)]


def killed_at_work(out: Path, pids: set[int | None]) -> int:
    """Kill the first worker that holds a unit, and return which."""
    ends = time.monotonic() + 240
    while time.monotonic() < ends:
        for lock in out.glob(f"*/{LOCK}"):
            try:
                text = lock.read_text(encoding="utf-8")
            except FileNotFoundError:
                continue
            if text.isdigit() and int(text) in pids:
                os.kill(int(text), signal.SIGKILL)
                return int(text)
        time.sleep(0.01)
    raise AssertionError("no worker took a unit")
