"""Native code is compiled once, from what it is keyed by, and says why where it cannot be had."""

import ctypes
import os
import platform
import re
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from specdec.kernels.compiled import build as building
from specdec.kernels.compiled import build_cache as caching
from specdec.kernels.compiled.build import NativeUnavailable, build, compiler, library
from specdec.kernels.compiled.build_cache import is_whole
from tests.native.samples import (
    STRICT,
    FakeCompiler,
    answer_of,
    answer_sources,
    build_alone,
    needed_compiler,
    needed_machine,
)
from tests.support.processes import FORKED, started, status_of

pytest.importorskip("fcntl")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, which no library was asked of yet."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("SPECDEC_CACHE", str(folder))
    monkeypatch.setattr(building, "_outcomes", {})
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Sources to compile."""
    return answer_sources(tmp_path / "sources")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    """A compiler whose libraries do not load."""
    made = FakeCompiler(tmp_path)
    monkeypatch.setenv("CXX", str(made.path))
    return made


def test_the_library_is_built_once_and_loaded_once(cache, sources, caplog):
    caplog.set_level("INFO", "specdec")
    needed_machine()
    needed_compiler()
    loaded = library(answer_of(sources))
    assert loaded.answer() == 42
    assert library(answer_of(sources)) is loaded
    begun, ended = caplog.records
    assert re.fullmatch(r"specdec: compiling an answer with .+, once for this machine \.\.\.", begun.message)
    assert re.fullmatch(r"specdec: compiling an answer took \d+\.\d s", ended.message)
    assert (begun.levelname, ended.levelname) == ("WARNING", "INFO"), "a wait is seen by default"
    caplog.clear()
    building._outcomes.clear()
    assert library(answer_of(sources)).answer() == 42
    assert caplog.messages == []
    assert sorted(path.suffix for path in (cache / "native").iterdir()) == ["", ".so"]
    assert (cache / "native").stat().st_mode & 0o777 == 0o700


def test_further_flags_make_a_library_of_their_own(cache, sources):
    needed_machine()
    needed_compiler()
    (sources / "answer.h").write_text("#ifndef ANSWER\n#define ANSWER 1\n#endif\n")
    assert (library(answer_of(sources), "-O1").answer(), library(answer_of(sources), "-O1", "-DANSWER=7").answer()) == (
        1,
        7,
    )


def test_threads_share_one_library(cache, sources, fake, monkeypatch):
    needed_machine()
    monkeypatch.setattr(building, "_load", lambda path: object())
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(library(answer_of(sources)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 4
    assert fake.count == 1


def test_processes_at_once_build_once(cache, tmp_path):
    fake = FakeCompiler(tmp_path, first="sleep 1")
    unit = answer_of(answer_sources(tmp_path / "sources"))
    with ProcessPoolExecutor(3, FORKED) as processes:
        running = [processes.submit(build, unit, cache, fake.command, ()) for _ in range(3)]
        paths = {path.result(timeout=120) for path in running}
    assert fake.count == 1
    assert [is_whole(path) for path in paths] == [True]


def test_a_killed_build_holds_nothing(cache, tmp_path):
    slow = FakeCompiler(tmp_path, first='if [ ! -e "$0.again" ]; then touch "$0.again"; sleep 60; fi')
    sources = answer_sources(tmp_path / "sources")
    killed = started(build_alone, sources, cache, slow.command)
    deadline = time.monotonic() + 60
    while not (tmp_path / "c++.again").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    assert status_of(killed) == -signal.SIGKILL
    (left,) = cache.glob("building-*")
    os.utime(left, (0, 0))
    young = cache / "building-on-another-host"
    young.mkdir()
    assert is_whole(build(answer_of(sources), cache, slow.command, ()))
    assert slow.count == 2
    assert not left.exists(), "the folder of the killed build is gone"
    assert young.exists()


def test_a_build_that_waits_says_so(cache, fake, tmp_path, caplog):
    sources = answer_sources(tmp_path / "sources")
    with caching.lock(cache / "lock"):
        waiting = threading.Thread(target=build, args=(answer_of(sources), cache, fake.command, ()))
        waiting.start()
        deadline = time.monotonic() + 60
        while "waiting for another process" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.02)
        assert fake.count == 0
    waiting.join()
    assert f"waiting for another process that compiles and holds {cache / 'lock'}" in caplog.text
    assert fake.count == 1


def test_a_file_system_without_locks_still_builds(cache, fake, tmp_path, monkeypatch):
    def flock(file: int, kind: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(caching.fcntl, "flock", flock)
    assert is_whole(build(answer_of(answer_sources(tmp_path / "sources")), cache, fake.command, ()))


def test_the_key_holds_all_that_a_library_depends_on(cache, tmp_path, fake, monkeypatch):
    sources, other = answer_sources(tmp_path / "sources"), tmp_path / "other"
    other.mkdir()
    unit = answer_of(sources)
    paths = [build(unit, cache, fake.command, ("-O2",)), build(unit, cache, fake.command, ("-O3",))]
    paths.append(build(unit, cache, (*fake.command, "-v"), ("-O2",)))
    paths.append(build(unit, cache, FakeCompiler(other).command, ("-O2",)))
    paths.append(build(unit, cache, FakeCompiler(tmp_path, version="fake 2.0").command, ("-O2",)))
    (sources / "answer.h").write_text("#define ANSWER 43\n")
    paths.append(build(unit, cache, fake.command, ("-O2",)))
    (sources / "answer.h").rename(sources / "reply.h")
    paths.append(build(unit, cache, fake.command, ("-O2",)))
    monkeypatch.setattr(building, "cpu", lambda: "model name: another")
    paths.append(build(unit, cache, fake.command, ("-O2",)))
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.0"))
    paths.append(build(unit, cache, fake.command, ("-O2",)))
    assert len(set(paths)) == len(paths)
    (sources / "notes.txt").write_text("no source")
    assert build(unit, cache, fake.command, ("-O2",)) == paths[-1]


def test_what_was_hashed_is_compiled_though_the_sources_change(cache, tmp_path):
    chosen, sources = needed_compiler(), answer_sources(tmp_path / "sources")
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f'#!/bin/sh\necho "#define ANSWER 0" > {sources}/answer.h\nexec {chosen[0]} "$@"\n')
    wrapper.chmod(0o755)
    path = build(answer_of(sources), cache, (str(wrapper), *chosen[1:]), STRICT)
    assert ctypes.CDLL(str(path)).answer() == 42


def test_a_failed_build_shows_the_compilers_message_and_leaves_nothing(cache, sources):
    needed_machine()
    needed_compiler()
    (sources / "answer.h").write_text("#define ANSWER nothing_of_this_name\n")
    with pytest.raises(NativeUnavailable, match=r"(?s)-std=c\+\+17 .* api\.cpp .*nothing_of_this_name") as caught:
        library(answer_of(sources))
    assert [path.name for path in (cache / "native").iterdir()] == ["lock"]
    (sources / "answer.h").write_text("#define ANSWER 42\n")
    with pytest.raises(NativeUnavailable) as again:
        library(answer_of(sources))
    assert str(again.value) == str(caught.value), "the failure is remembered"


def test_a_failure_is_announced(cache, tmp_path, caplog):
    caplog.set_level("INFO", "specdec")
    failing = FakeCompiler(tmp_path, first="echo out of order >&2; exit 3")
    with pytest.raises(NativeUnavailable, match=r"status 3: .*c[+][+] -v api.cpp -o .*\.so\nout of order"):
        build(answer_of(answer_sources(tmp_path / "sources")), cache, failing.command, ("-v",))
    begun, ended = caplog.messages
    assert begun.endswith("with fake 1.0, once for this machine ...")
    assert ended.startswith("specdec: compiling an answer failed after ")


def test_missing_sources_are_a_reason(cache, tmp_path, fake):
    with pytest.raises(NativeUnavailable, match=r"sources .* cannot be read: .*api\.cpp.*install"):
        build(answer_of(tmp_path), cache, fake.command, ())


@pytest.mark.parametrize(
    ("cxx", "reason"),
    [
        ("", r"none of c\+\+, g\+\+, clang\+\+ is on PATH; install one"),
        ("no-such-compiler -v", "CXX is 'no-such-compiler -v', and there is no program 'no-such-compiler'"),
        ("'open", 'CXX is "\'open", which is no command'),
    ],
)
def test_no_compiler_is_a_reason(tmp_path, monkeypatch, cxx, reason):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", cxx)
    with pytest.raises(NativeUnavailable, match=reason):
        compiler()


def test_the_first_known_compiler_on_the_path_is_taken_unless_cxx_names_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    for name in ("clang++", "g++", "mine"):
        (tmp_path / name).touch(mode=0o755)
    assert compiler() == (str(tmp_path / "g++"),)
    monkeypatch.setenv("CXX", "mine -stdlib='libc++'")
    assert compiler() == (str(tmp_path / "mine"), "-stdlib=libc++")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", "./mine")
    assert compiler() == (str(tmp_path / "mine"),), "it is run in another folder"


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed"])
def test_a_damaged_library_is_built_again(cache, tmp_path, damage):
    chosen, sources = needed_compiler(), answer_sources(tmp_path / "sources")
    path = build(answer_of(sources), cache, chosen, STRICT)
    good = path.read_bytes()
    bad = {"truncated": good[: len(good) // 2], "empty": b"", "changed": good[:1000] + b"?" + good[1001:]}[damage]
    path.write_bytes(bad)
    assert build(answer_of(sources), cache, chosen, STRICT) == path
    assert is_whole(path)
    assert ctypes.CDLL(str(path)).answer() == 42


def test_a_library_that_does_not_load_is_a_reason(cache, sources, fake):
    needed_machine()
    for _ in range(2):
        with pytest.raises(NativeUnavailable, match=r"\.so does not load: .*noexec.*SPECDEC_CACHE.*delete the file"):
            library(answer_of(sources))
    assert fake.count == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_lock_of_its_own():
    before = building._lock
    with before:
        child = os.fork()
        if child == 0:
            os._exit(building._lock.locked())
        assert os.waitpid(child, 0)[1] == 0
    assert building._lock is before
