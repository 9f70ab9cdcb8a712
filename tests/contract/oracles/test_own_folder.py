"""A folder that only its user can write to, or a word about who else can; and files that are written whole."""

import errno
import os
import tempfile

import pytest

from experiments.sweep import working
from experiments.sweep.working import Seat
from specdec.system import LOCK, keep_first, write_whole
from specdec.system.own_folder import Unsafe, is_own, open_plain, own_folder, private_folder
from tests.support.texts.strangers import STRANGER, give_away

pytest.importorskip("fcntl")


def test_what_is_absent_is_made_for_the_user_alone(tmp_path):
    made = own_folder(tmp_path / "a" / "b")
    assert made == tmp_path / "a" / "b"
    assert [path.stat().st_mode & 0o777 for path in (made, made.parent)] == [0o700, 0o700]
    assert own_folder(tmp_path / "a" / ".." / "a" / "b") == made


def test_a_link_of_the_user_is_walked_and_one_of_a_stranger_is_not(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    assert own_folder(tmp_path / "link" / "x") == tmp_path / "real" / "x"
    with pytest.raises(OSError, match=r"symbolic links.*round"):
        own_folder(tmp_path / "round")
    give_away(tmp_path / "link", monkeypatch)
    with pytest.raises(Unsafe, match=rf"the link .*link belongs to user {STRANGER}; delete it"):
        own_folder(tmp_path / "link" / "x")


@pytest.mark.parametrize("part", ["above", "above/folder"])
def test_a_folder_of_a_stranger_on_the_way_is_refused(tmp_path, monkeypatch, part):
    folder = own_folder(tmp_path / "above" / "folder")
    give_away(tmp_path / part, monkeypatch)
    with pytest.raises(Unsafe, match=rf"{tmp_path / part} belongs to user {STRANGER}, and this is user {os.geteuid()}"):
        own_folder(folder)


@pytest.mark.parametrize(
    ("part", "mode", "is_safe"),
    [
        ("above", 0o770, False),
        ("above", 0o703, False),
        ("above", 0o1777, True),
        ("above", 0o711, True),
        ("above/folder", 0o1777, False),
        ("above/folder", 0o770, False),
        ("above/folder", 0o755, True),
    ],
)
def test_a_folder_that_others_may_write_is_refused_with_the_fix(tmp_path, part, mode, is_safe):
    folder = own_folder(tmp_path / "above" / "folder")
    (tmp_path / part).chmod(mode)
    if is_safe:
        assert own_folder(folder) == folder
        return
    with pytest.raises(Unsafe, match=rf"others may write to {tmp_path / part}; run: chmod go-w"):
        own_folder(folder)


def test_a_file_on_the_way_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=rf"{tmp_path / 'file'}"):
        own_folder(tmp_path / "file" / "x")


def test_a_private_folder_is_the_processs_own_and_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with private_folder() as made:
        assert made.parent == tmp_path
        assert made.stat().st_mode & 0o777 == 0o700
    assert not made.exists()
    tmp_path.chmod(0o777)
    with pytest.raises(Unsafe, match=rf"chmod \+t '{tmp_path}'"), private_folder():
        pass


def test_a_file_is_the_users_own_if_nobody_else_may_write_it(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.touch(mode=0o600)
    file = open_plain(path, os.O_RDONLY)
    try:
        assert is_own(file)
        path.chmod(0o620)
        assert not is_own(file)
        path.chmod(0o600)
        give_away(path, monkeypatch)
        assert not is_own(file)
    finally:
        os.close(file)


@pytest.mark.parametrize("attack", ["link", "folder"])
def test_workers_hold_cores_in_no_folder_that_a_stranger_made(tmp_path, monkeypatch, capsys, attack):
    """The folder of claims has a name that anybody can guess, in a folder where anybody may make it first."""
    held, trap, precious = tmp_path / "held", tmp_path / "trap", tmp_path / "precious"
    precious.write_text("of years")
    folder = trap if attack == "link" else held
    (folder / "choice").mkdir(parents=True)
    (folder / "choice" / LOCK).symlink_to(precious)
    if attack == "link":
        held.symlink_to(trap)
    give_away(held, monkeypatch)
    monkeypatch.setattr(working, "HELD", held)
    seat = Seat(0, 1, tuple(sorted(os.sched_getaffinity(0))[:1]))
    for _ in range(2):
        with seat.take() as is_seated:
            assert is_seated
            assert precious.read_text() == "of years"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("other workers do not see which cores and devices this one holds: ")
    assert f"belongs to user {STRANGER}" in line


def test_a_link_that_leads_back_to_a_shared_folder_is_no_folder_of_ones_own(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "own").symlink_to(".")
    with pytest.raises(Unsafe):
        own_folder(shared / "own")


def test_a_file_that_cannot_be_written_leaves_nothing_beside_it(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for write, step in ((write_whole, "fsync"), (write_whole, "replace"), (keep_first, "link")):
        with monkeypatch.context() as patched:
            patched.setattr(os, step, full)
            with pytest.raises(OSError, match="No space left"):
                write(tmp_path / "name", "text")
        assert list(tmp_path.iterdir()) == []
