"""Where compiled libraries are kept, and which machines they are compiled for."""

import os
import platform
import re
from pathlib import Path

import pytest

from specdec.native import build as building
from specdec.native import machine
from specdec.native.build import NativeUnavailable, Unit, library
from specdec.native.cache import cache_folder
from tests.native.samples import answer_of, answer_sources, needed_compiler, needed_machine

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


def test_the_folder_is_the_one_named_else_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_the_folder_is_the_users_alone(tmp_path: Path):
    folder = cache_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache_folder() == folder


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_may_write_is_refused(mode: int):
    cache_folder().chmod(mode)
    with pytest.raises(NativeUnavailable, match=r"others may write to .*native.*chmod go-w"):
        cache_folder()


def test_a_folder_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch):
    owner = cache_folder().stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(NativeUnavailable, match=rf"belongs to user {owner}, and this is user {owner + 1}; name"):
        cache_folder()


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unit:
    """What is compiled; no library was asked for yet."""
    needed_compiler()
    needed_machine()
    monkeypatch.setattr(building, "_outcomes", {})
    return answer_of(answer_sources(tmp_path / "sources"))


def test_without_a_home_to_write_to_the_library_is_this_processs_alone(
    unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "home").touch()
    private = tmp_path / "temporary"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    assert library(unit).answer() == 42
    said = capsys.readouterr().err.splitlines()[0]
    assert re.match(r"specdec: no library can be kept \(.*for this process alone; name a folder in SPECDEC_CACHE", said)
    assert list(private.iterdir()) == []


def test_a_named_folder_that_cannot_be_written_is_a_reason(unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(NativeUnavailable, match=r"SPECDEC_CACHE names: .*file.*; name another"):
        library(unit)


def test_a_library_in_a_folder_that_can_only_be_read_is_used(unit: Unit, monkeypatch: pytest.MonkeyPatch):
    first = library(unit)

    def refused(path: Path) -> None:
        raise PermissionError("read only")

    monkeypatch.setattr(building, "locked", refused)
    monkeypatch.setattr(building, "_outcomes", {})
    assert library(unit)._name == first._name


def test_the_lines_that_tell_a_cpu_leave_out_what_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert machine.cpu() == ""

    def cpu(name: str, mhz: str, flags: str) -> str:
        (tmp_path / "cpuinfo").write_text(CPUINFO.format(name=name, mhz=mhz, flags=flags))
        return machine.cpu()

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
def test_machines_that_the_pass_is_not_written_for_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, kind: str, flags: str, expected: str
):
    (tmp_path / "cpuinfo").write_text(CPUINFO.format(name="A", mhz="1", flags=flags))
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: kind)
    if expected.startswith("-"):
        assert machine.target_flag() == expected
    else:
        with pytest.raises(NativeUnavailable, match=expected):
            machine.target_flag()
