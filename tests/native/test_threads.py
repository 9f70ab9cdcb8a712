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
from oracles.native.bindings import Team
from oracles.native.threads import file_of, num_threads, team
from specdec.kernels.compiled.build import LibrarySources, build
from specdec.kernels.compiled.build_cache import cache_folder
from tests.native.samples import STRICT, needed_compiler, script
from tests.support.backends import needed_native
from tests.support.pairwise import first_of

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
START = """
import json, os, signal, threading, torch, warnings
from oracles.native.threads import file_of, num_threads, team

def tasks():
    return {int(name) for name in os.listdir("/proc/self/task")}

def at_once(work):
    seen = {}
    callers = [threading.Thread(target=lambda i: seen.update({i: work(i)}), args=(i,)) for i in range(2)]
    [caller.start() for caller in callers]
    [caller.join() for caller in callers]
    return seen[0], seen[1]

def forked(work):
    reading, writing = os.pipe()
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that hangs
        os.write(writing, json.dumps(work()).encode())
        os._exit(0)
    os.close(writing)
    status = os.waitpid(child, 0)[1]
    return status, json.loads(os.read(reading, 1000) or "null")
"""
COMMON = """
import ctypes
called = ctypes.CDLL({library!r}).region

def region(asked):
    found, tids, size = team(), (ctypes.c_long * asked)(), ctypes.c_int()
    addresses = (ctypes.c_void_p * 3)(found.parallel, found.thread_num, found.num_threads)
    called(addresses, ctypes.c_uint(asked), tids, ctypes.byref(size))
    return list(tids)[: size.value]

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
seen = at_once(lambda i: [region(3) for _ in range(200)])
sizes = {len(set(tids)) for regions in seen for tids in regions}
print(json.dumps({"sizes": list(sizes), "shared": len(set(seen[0][-1]) & set(seen[1][-1]))}))
"""
FORKED = """
region(3)
status, child = forked(lambda: {"num": num_threads(), "ran": len(region(1))})
print(json.dumps({"status": status, "parent": num_threads(), **child}))
"""
# Two models: three threads have KV heads of their own, or none. The bits are those of wide passes, and of a chain.
# The caches have so many numbers that torch clears them on several threads.
PASSES = """
import hashlib
import numpy as np
from oracles.native import NativeTransformer
from tests.support.models.tiny_models import small_model
from tests.support.models.scoring import append

torch.set_num_threads(1)
shape = {"max_context": 512, "hidden_size": 96, "num_heads": 6}
models = [NativeTransformer(small_model(num_kv_heads=heads, **shape)) for heads in (2, 3)]
texts = torch.randint(23, (2, 400), generator=torch.Generator().manual_seed(1))

def bits(text):
    digest = hashlib.sha256()
    for model in models:
        cache = model.new_cache(1, 420)
        digest.update(append(model, cache, 0, text[:390], 100).numpy())
        call = text[None].numpy(), np.array([400]), cache, np.array([0]), np.array([8])
        [digest.update(found) for found in model.follow_ids(*call)[:2]]
    return digest.hexdigest()

alone, before = [bits(text) for text in texts], tasks()
torch.set_num_threads(3)
first = bits(texts[0])
workers = tasks() - before
"""
IDLED = """
import time
from pathlib import Path

def awake():
    stats = [Path(f"/proc/self/task/{worker}/stat").read_text() for worker in workers]
    return any(stat.rpartition(")")[2].split()[0] != "S" for stat in stats)

found = [first]
for _ in range(3):
    while awake():
        time.sleep(0.02)
    found.append(bits(texts[0]))
print(json.dumps({"workers": len(workers), "stayed": workers <= tasks(), "same": set(found) == {alone[0]}}))
"""
FORKED_PASSES = """
status, child = forked(lambda: [bits(text) for text in texts])
parent = [bits(text) for text in texts]
print(json.dumps({"workers": len(workers), "status": status, "same": first == alone[0] and child == parent == alone}))
"""
TWO_SCORERS = """
seen = at_once(lambda i: (num_threads(), [bits(texts[i]) for _ in range(4)]))
print(json.dumps({"nums": [num for num, _ in seen], "same": [set(found) for _, found in seen] == [{a} for a in alone]}))
"""


def needed_runtime() -> Team:
    """Return the runtime that torch runs on; skip the test where there is none."""
    found = team()
    if found is None:
        pytest.skip("torch runs on no OpenMP runtime")
    return found


@pytest.fixture
def common(tmp_path: Path) -> str:
    """The start of a program that has run an operation of torch on three threads."""
    chosen, source = needed_compiler(), tmp_path / "api.cpp"
    needed_runtime()
    source.write_text(REGION)
    return START + COMMON.format(
        library=str(build(LibrarySources("a region", source, ()), cache_folder(), chosen, STRICT))
    )


def all_of(program: str, **environment: str) -> list[SimpleNamespace]:
    """Return what the parts of a program print, a line each; it may take minutes where the machine is busy."""
    done = subprocess.run(
        script(program), cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [SimpleNamespace(**json.loads(line)) for line in done.stdout.splitlines()]


def ran(program: str, **environment: str) -> SimpleNamespace:
    (found,) = all_of(program, **environment)
    return found


def test_a_region_runs_on_the_threads_that_torch_has_for_two_callers_and_in_a_fork(common: str):
    pool, callers, child = all_of(common + ON_THE_POOL + TWO_CALLERS + FORKED)
    assert (pool.pool, pool.same, pool.new, pool.num) == (2, True, 0, 3)
    assert (callers.sizes, callers.shared) == ([3], 0)
    assert (child.status, child.num, child.ran, child.parent) == (0, 1, 1, 3), "a forked child works alone"


@pytest.fixture
def passes() -> str:
    """The start of a program that has run passes alone, and then on three threads."""
    needed_native()
    needed_runtime()
    return START + PASSES


def test_passes_have_the_same_bits_after_sleep_on_teams_of_two_threads_and_after_a_fork(passes: str):
    asleep, scorers, child = all_of(passes + IDLED + TWO_SCORERS + FORKED_PASSES)
    assert (asleep.workers, asleep.stayed, asleep.same) == (2, True, True)
    assert (scorers.nums, scorers.same) == ([3, 3], True)
    assert (child.workers, child.status, child.same) == (2, 0, True), "in the child and in its parent"


def test_passes_on_fewer_threads_that_fell_asleep_have_the_same_bits(passes: str):
    found = ran(passes + IDLED, OMP_THREAD_LIMIT="2")
    assert (found.workers, found.stayed, found.same) == (1, True, True)


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


@pytest.mark.parametrize("order", first_of("before torch", "after torch"))
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
    found = needed_runtime()
    scopes = list(threads._scopes())
    assert [bytes(threads._entry_points(scope)) for scope in scopes] == [bytes(found)] * 2
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
    needed_runtime()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert num_threads() == 4


def test_entry_points_of_two_libraries_are_no_runtime():
    everything = ctypes.CDLL(None)
    mixed = SimpleNamespace(
        GOMP_parallel=everything.abs, omp_get_thread_num=everything.abs, omp_get_num_threads=everything.Py_IsInitialized
    )
    assert threads._entry_points(mixed) is None


def test_without_torchs_library_there_is_the_global_scope_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "LIBRARY", "libnone.so")
    assert len(list(threads._scopes())) == 1
    assert file_of(0) == ""
