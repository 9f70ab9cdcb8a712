"""Where compiled libraries are kept, and which machines they are compiled for."""

import os
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from specdec.kernels import native
from specdec.kernels.compiled import build as building
from specdec.kernels.compiled.build import LibrarySources, NativeUnavailable, compiler, library
from specdec.kernels.compiled.build_cache import cache_folder
from tests.native.samples import answer_of, answer_sources, needed_compiler, needed_machine
from tests.support.texts.strangers import STRANGER, give_away

pytest.importorskip("fcntl")
CPUINFO = """processor\t: 0
model name\t: {name}
cpu MHz\t\t: {mhz}
flags\t\t: fpu avx2 {flags}

processor\t: 1
model name\t: {name}
flags\t\t: fpu avx2 {flags}
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("SPECDEC_CACHE", raising=False)


def test_the_folder_is_the_one_named_else_the_users_cache(tmp_path, monkeypatch):
    assert cache_folder() == tmp_path / "home" / ".cache" / "specdec" / "native"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / "home" / ".cache" / "specdec" / "native"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "specdec" / "native"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECDEC_CACHE", "named")
    assert cache_folder() == tmp_path / "named" / "native"
    monkeypatch.setenv("SPECDEC_CACHE", "~/named")
    assert cache_folder() == tmp_path / "home" / "named" / "native"


def test_the_folder_is_the_users_alone(tmp_path):
    folder = cache_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache_folder() == folder


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LibrarySources:
    """What is compiled; no library was asked for yet."""
    needed_compiler()
    needed_machine()
    monkeypatch.setattr(building, "_outcomes", {})
    return answer_of(answer_sources(tmp_path / "sources"))


def test_without_a_home_to_write_to_the_library_is_this_processs_alone(unit, tmp_path, monkeypatch, caplog):
    (tmp_path / "home").touch()
    private = tmp_path / "temporary"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    assert library(unit).answer() == 42
    said = caplog.messages[0]
    assert re.match(r"specdec: no library can be kept \(.*for this process alone; name a folder in SPECDEC_CACHE", said)
    assert list(private.iterdir()) == []


def test_a_named_folder_that_cannot_be_written_is_a_reason(unit, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(NativeUnavailable, match=r"SPECDEC_CACHE names: .*file.*; name another"):
        library(unit)


def test_a_library_in_a_folder_that_can_only_be_read_is_used(unit, monkeypatch, caplog):
    library(unit)
    caplog.clear()

    def refused(path: Path) -> None:
        raise PermissionError("read only")

    monkeypatch.setattr(building, "lock", refused)
    monkeypatch.setattr(building, "_outcomes", {})
    assert library(unit).answer() == 42
    assert caplog.messages == []


def foreign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, swap: Callable[[Path, Path], None]) -> list[Path]:
    """Have a stranger act after every build: ``swap`` is called with the library and foreign code of that name.

    Returns the libraries that were built; the list grows.
    """
    original, built = building.build, []

    def build(unit: LibrarySources, cache: Path, chosen: Sequence[str], flags: Sequence[str]) -> Path:
        path = original(unit, cache, chosen, flags)
        evil = tmp_path / f"evil-{len(built)}" / cache.name
        evil.mkdir(parents=True, mode=0o700)
        other = original(answer_of(answer_sources(tmp_path / "evil", 666)), evil, chosen, flags)
        built.append(path)
        swap(path, other.rename(other.with_name(path.name)))
        return path

    monkeypatch.setattr(building, "build", build)
    return built


@pytest.mark.parametrize("named", [False, True])
def test_a_cache_whose_parent_is_a_strangers_is_not_used_and_a_line_says_so(unit, tmp_path, monkeypatch, caplog, named):
    """The stranger may rename our folder in theirs and put another one in its place, between the check and the load."""
    parent = tmp_path / "shared"
    parent.mkdir(mode=0o755)
    monkeypatch.setenv("SPECDEC_CACHE" if named else "XDG_CACHE_HOME", str(parent))
    native = cache_folder()
    give_away(parent, monkeypatch)

    def swap(path: Path, evil: Path) -> None:
        if path.parent == native:
            native.rename(tmp_path / "aside")
            evil.parent.rename(native)

    built = foreign(monkeypatch, tmp_path, swap)
    assert library(unit).answer() == 42
    assert [path.parent.name.startswith("specdec-") for path in built] == [True]
    said = [line for line in caplog.messages if "compiling" not in line]
    reason = f"{parent} belongs to user {STRANGER}, and this is user {os.geteuid()}; name a folder of your own"
    way = "it is compiled for this process alone; name a folder in SPECDEC_CACHE"
    assert said == [f"specdec: no library can be kept ({reason}): {way}"]


def test_what_was_checked_is_what_is_loaded(unit, tmp_path, monkeypatch):
    """A file that takes the library's name after the check is not loaded."""
    foreign(monkeypatch, tmp_path, lambda path, evil: evils.append((path, evil)))
    evils: list[tuple[Path, Path]] = []
    checked = building.open_whole

    def open_whole(path: Path) -> int | None:
        file = checked(path)
        evils[0][1].replace(evils[0][0])
        return file

    monkeypatch.setattr(building, "open_whole", open_whole)
    assert library(unit).answer() == 42


def test_a_library_that_a_stranger_left_there_is_compiled_again(unit, tmp_path, monkeypatch):
    """Its name can be guessed, and its seal is no secret: it was put there when others could write to the folder."""
    library(unit)
    (path,) = cache_folder().glob("*.so")
    others = tmp_path / "others"
    others.mkdir()
    evil = building.build(answer_of(answer_sources(tmp_path / "evil", 666)), others, compiler(), ("-shared", "-fPIC"))
    evil.replace(path)
    give_away(path, monkeypatch)
    monkeypatch.setattr(building, "_outcomes", {})
    assert library(unit).answer() == 42


def test_a_library_is_the_users_own_whatever_the_umask(unit, monkeypatch, caplog):
    before = os.umask(0o002)
    try:
        library(unit)
        monkeypatch.setattr(building, "_outcomes", {})
        library(unit)
    finally:
        os.umask(before)
    assert caplog.text.count("compiling") == 1


def test_a_lock_that_is_a_link_is_not_followed(unit, tmp_path, caplog):
    (cache_folder() / "lock").symlink_to(tmp_path / "made")
    assert library(unit).answer() == 42
    assert not (tmp_path / "made").exists()
    assert re.match(r"specdec: no library can be kept \(.*lock is a link.*delete it\)", caplog.messages[0])


def test_the_slow_pass_is_never_taken_without_a_word(unit, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(native, "LAWS", unit)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    monkeypatch.setattr(native, "native_kernels", native.native_kernels.__wrapped__)
    for _ in range(2):
        assert native.best_kernels() is native.REFERENCE
    (line,) = caplog.messages
    assert re.match(r"specdec: laws and draws are torch operations, which take longer: no library .*name another", line)


def test_the_lines_that_tell_a_cpu_leave_out_what_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "CPUINFO", tmp_path / "cpuinfo")
    assert building.cpu() == ""

    def cpu(name: str, mhz: str, flags: str) -> str:
        (tmp_path / "cpuinfo").write_text(CPUINFO.format(name=name, mhz=mhz, flags=flags))
        return building.cpu()

    first = cpu("A", "1000.0", "fma")
    assert len(first.splitlines()) == 2
    assert cpu("A", "1234.5", "fma") == first
    assert len({first, cpu("B", "1000.0", "fma"), cpu("A", "1000.0", "fma f16c")}) == 3


@pytest.mark.parametrize(
    ("system", "kind", "flags", "expected"),
    [
        ("Linux", "x86_64", "fma f16c", "-march=native"),
        ("Linux", "aarch64", "", "-mcpu=native"),
        ("Linux", "x86_64", "fma", r"needs a CPU with avx2, fma, f16c; this one lacks \['f16c'\]"),
        ("Linux", "riscv64", "", "written for Linux on x86_64 and aarch64, and this is Linux on riscv64"),
        ("Darwin", "arm64", "", "this is Darwin on arm64"),
    ],
)
def test_machines_that_the_pass_is_not_written_for_are_refused(tmp_path, monkeypatch, system, kind, flags, expected):
    (tmp_path / "cpuinfo").write_text(CPUINFO.format(name="A", mhz="1", flags=flags))
    monkeypatch.setattr(building, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: kind)
    if expected.startswith("-"):
        assert building.target_flag() == expected
    else:
        with pytest.raises(NativeUnavailable, match=expected):
            building.target_flag()
