"""The native pass runs on the threads of torch, on all of them, and alone where they cannot be had."""

import ctypes
import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from oracles.native import threads
from oracles.native.threads import file_of, num_threads, team
from specdec.native.build import Unit, build
from tests.native.samples import STRICT, needed_compiler, script

ROOT = Path(__file__).parents[2]
# Says which thread of the system ran which part of a region.
REGION = """
#include <sys/syscall.h>
#include <unistd.h>
struct Team {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int (*thread_num)();
    int (*num_threads)();
};
struct Work { const Team *team; long *tids; int *size; };
static void note(void *data) {
    const Work &work = *static_cast<Work *>(data);
    work.tids[work.team->thread_num()] = syscall(SYS_gettid);
    if (work.team->thread_num() == 0) *work.size = work.team->num_threads();
}
extern "C" __attribute__((visibility("default")))
void region(const Team *team, unsigned asked, long *tids, int *size) {
    Work work{team, tids, size};
    team->parallel(note, &work, asked, 0);
}
"""
COMMON = """
import ctypes, json, os, threading, torch, warnings
from oracles.native.threads import file_of, num_threads, team
called = ctypes.CDLL({library!r}).region

def region(asked):
    found, tids, size = team(), (ctypes.c_long * asked)(), ctypes.c_int()
    addresses = (ctypes.c_void_p * 3)(found.parallel, found.thread_num, found.num_threads)
    called(addresses, ctypes.c_uint(asked), tids, ctypes.byref(size))
    return list(tids)[: size.value]

def tasks():
    return {{int(name) for name in os.listdir("/proc/self/task")}}

torch.set_num_threads(3)
before = tasks()
values = torch.ones(1 << 20)
values.exp().sum()
pool = tasks() - before
"""
ON_THE_POOL = """
ours = [region(3) for _ in range(50)]
values.exp().sum()
print(json.dumps({"pool": len(pool), "same": all(set(tids) == pool | {os.getpid()} for tids in ours),
    "new": len(tasks() - before - pool), "num": num_threads(), "file": file_of(team().parallel)}))
"""
TWO_CALLERS = """
seen = {}
def call(name):
    seen[name] = [region(3) for _ in range(200)]
callers = [threading.Thread(target=call, args=(name,)) for name in range(2)]
[caller.start() for caller in callers]
[caller.join() for caller in callers]
sizes = {len(set(tids)) for name in seen for tids in seen[name]}
print(json.dumps({"sizes": list(sizes), "shared": len(set(seen[0][-1]) & set(seen[1][-1]))}))
"""
FORKED = """
region(3)
reading, writing = os.pipe()
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
child = os.fork()
if child == 0:
    os.write(writing, json.dumps({"num": num_threads(), "ran": len(region(1))}).encode())
    os._exit(0)
status = os.waitpid(child, 0)[1]
print(json.dumps({"status": status, "parent": num_threads(), **json.loads(os.read(reading, 1000))}))
"""


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The start of a program that has run an operation of torch on three threads."""
    chosen, folder = needed_compiler(), tmp_path_factory.mktemp("region")
    if team() is None:
        pytest.skip("torch runs on no OpenMP runtime")
    (folder / "api.cpp").write_text(REGION)
    return COMMON.format(library=str(build(Unit("a region", folder / "api.cpp", ()), folder, chosen, STRICT)))


def ran(program: str, **environment: str) -> SimpleNamespace:
    """Return what a program prints; it may take minutes where the machine is busy."""
    done = subprocess.run(
        script(program), cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(**json.loads(done.stdout))


def test_a_region_runs_on_the_threads_that_torch_has(common: str):
    found = ran(common + ON_THE_POOL)
    assert (found.pool, found.same, found.new, found.num) == (2, True, 0, 3)


def test_two_threads_may_call_at_once(common: str):
    found = ran(common + TWO_CALLERS)
    assert (found.sizes, found.shared) == ([3], 0)


def test_a_forked_child_works_alone(common: str):
    found = ran(common + FORKED)
    assert (found.status, found.num, found.ran, found.parent) == (0, 1, 1, 3)


@pytest.fixture
def other_runtime(tmp_path: Path) -> Path:
    """A second libgomp, under a name of its own as wheels have it."""
    said = subprocess.run([*needed_compiler(), "-print-file-name=libgomp.so.1"], capture_output=True, text=True)
    path = Path(said.stdout.strip())
    if not path.is_absolute():
        pytest.skip("the compiler has no libgomp")
    renamed = tmp_path / "libgomp-0abc.so.1"
    shutil.copy(path, renamed)
    # The name inside, which the dynamic linker knows it by; of the same length.
    renamed.write_bytes(renamed.read_bytes().replace(b"libgomp.so.1\0", b"libgomq.so.1\0"))
    return renamed


@pytest.mark.parametrize("order", ["before torch", "after torch"])
def test_another_runtime_beside_torchs_is_left_alone(common: str, other_runtime: Path, order: str):
    load = f"import ctypes; ctypes.CDLL({str(other_runtime)!r})\n"
    found = ran(load + common + ON_THE_POOL if order == "before torch" else common + load + ON_THE_POOL)
    assert found.file != str(other_runtime)
    assert (found.pool, found.same, found.new) == (2, True, 0)


def test_a_preloaded_runtime_is_the_one_that_torch_runs_on(common: str, other_runtime: Path):
    found = ran(common + ON_THE_POOL, LD_PRELOAD=str(other_runtime))
    assert found.file == str(other_runtime)
    assert (found.pool, found.same, found.new) == (2, True, 0)


def test_both_scopes_lead_to_the_same_runtime():
    found = team()
    if found is None:
        pytest.skip("torch runs on no OpenMP runtime")
    scopes = list(threads._scopes())
    assert [threads._entry_points(scope) for scope in scopes] == [found] * 2
    assert "omp" in Path(file_of(found.parallel)).name


@pytest.fixture
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "team", functools.cache(team.__wrapped__))


@pytest.mark.usefixtures("_asked_anew")
@pytest.mark.parametrize("cause", ["backend", "names"])
def test_without_a_runtime_a_pass_has_one_thread(monkeypatch: pytest.MonkeyPatch, cause: str):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    if cause == "backend":
        monkeypatch.setattr(torch.__config__, "parallel_info", lambda: "ATen parallel backend: native thread pool")
    else:
        monkeypatch.setattr(threads, "ENTRY_POINTS", ("no_such_function",))
    assert threads.team() is None
    assert num_threads() == 1


def test_torchs_number_of_threads_is_ours(monkeypatch: pytest.MonkeyPatch):
    if team() is None:
        pytest.skip("torch runs on no OpenMP runtime")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert num_threads() == 4


def test_entry_points_of_two_libraries_are_no_runtime():
    everything = ctypes.CDLL(None)
    mixed = SimpleNamespace(
        GOMP_parallel=everything.abs, omp_get_thread_num=everything.abs, omp_get_num_threads=everything.Py_IsInitialized
    )
    assert threads._entry_points(mixed) is None


def test_a_system_that_shows_no_maps_has_the_global_scope_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "MAPS", tmp_path / "none")
    assert len(list(threads._scopes())) == 1
    assert file_of(0) == ""
