"""A folder of results belongs to one process at a time, and to none that is dead."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from specdec.system import LOCK, FolderInUse, hold, holding
from tests.support.processes import started, status_of


def hold_until_killed(folder: Path) -> None:
    """Claim a folder until the process is killed."""
    with hold(folder, "--out"):
        time.sleep(600)


def test_a_folder_is_made_held_and_left_as_it_was(tmp_path):
    folder = tmp_path / "runs" / "x"
    with hold(folder, "--out") as held:
        assert held == folder
        with pytest.raises(ValueError, match=rf"{folder}.*process \({os.getpid()}\).*--out"), hold(folder, "--out"):
            pass
        (folder / "result").touch()
    assert [path.name for path in folder.iterdir()] == ["result"]
    with hold(folder, "--out"):
        pass


def test_a_folder_in_which_nothing_was_written_goes_with_the_claim(tmp_path):
    with hold(tmp_path / "x", "--out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_claim_dies_with_its_process(tmp_path):
    folder = tmp_path / "x"
    other, lock, ends = started(hold_until_killed, folder), folder / LOCK, time.monotonic() + 120
    try:
        while not (lock.exists() and lock.read_text(encoding="utf-8")) and time.monotonic() < ends:
            time.sleep(0.02)
        with pytest.raises(ValueError, match=rf"process \({other.pid}\)"), hold(folder, "--out"):
            pass
    finally:
        other.kill()
    assert status_of(other) == -signal.SIGKILL
    assert list(folder.iterdir()), "what the killed process left"
    with hold(folder, "--out"):
        pass
    assert not folder.exists()


def test_a_claim_on_a_lock_that_its_holder_took_away_is_none(tmp_path, monkeypatch):
    """The holder takes the file away between the other's opening it and locking it: the other tries again."""
    fcntl = pytest.importorskip("fcntl")
    folder, original, locked = tmp_path / "x", fcntl.flock, []

    def flock(file: int, kind: int) -> None:
        if not locked:
            (lock,) = folder.iterdir()
            lock.unlink()
        locked.append(file)
        original(file, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    with hold(folder, "--out"):
        assert len(locked) == 2
        with pytest.raises(ValueError, match="another"), hold(folder, "--out"):
            pass


@pytest.mark.parametrize("below", [False, True])
def test_a_folder_that_cannot_be_written_is_an_error_with_the_fix(tmp_path, below):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "x" if below else tmp_path / "file"
    with pytest.raises(ValueError, match=rf"--out: .*{folder}.*give a folder that can"), hold(folder, "--out"):
        pass


def test_a_folder_that_cannot_be_locked_is_an_error_with_the_fix(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def flock(file: int, kind: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ValueError, match=r"--out: .*not supported.*give a folder"), hold(tmp_path / "x", "--out"):
        pass


def test_a_folder_that_its_holder_takes_away_meanwhile_is_made_again(tmp_path):
    def take_turns(_: int) -> int:
        turns, ends = 0, time.monotonic() + 0.3
        while time.monotonic() < ends:
            with suppress(FolderInUse), hold(tmp_path / "x", "--out"):
                turns += 1
        return turns

    with ThreadPoolExecutor(3) as threads:
        assert sum(threads.map(take_turns, range(3))) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_goes_time_and_again_is_an_error(tmp_path, monkeypatch):
    original, left = holding._lock_file, [2]

    def locked(place: int, folder: Path, argument: str) -> IO[str]:
        if left[0]:
            folder.rmdir()
            left[0] -= 1
        return original(place, folder, argument)

    monkeypatch.setattr(holding, "_lock_file", locked)
    with hold(tmp_path / "x", "--out"):
        assert left == [0]
    left[0] = holding.TRIES
    with pytest.raises(ValueError, match=r"--out: .*x cannot be written"), hold(tmp_path / "x", "--out"):
        pass


@pytest.mark.parametrize("kind", ["link", "second name", "pipe"])
def test_a_claim_empties_no_file_that_somebody_put_in_place_of_its_own(tmp_path, kind):
    pytest.importorskip("fcntl")
    folder, precious = tmp_path / "x", tmp_path / "precious"
    folder.mkdir()
    precious.write_text("of years")
    make = {"link": (folder / LOCK).symlink_to, "second name": (folder / LOCK).hardlink_to, "pipe": os.mkfifo}
    make[kind](folder / LOCK if kind == "pipe" else precious)
    with (
        pytest.raises(ValueError, match=r"--out: .*x cannot be written: .*lock is .*; delete it"),
        hold(folder, "--out"),
    ):
        pass
    assert precious.read_text() == "of years"
