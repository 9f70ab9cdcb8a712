"""A folder that only this user can write to: nobody else can put a file there, or another folder in its place."""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# A folder that may be entered and not listed (0711) is opened only as a place, if the system can do that.
_PLACE = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_MOST_LINKS = 40


class Unsafe(PermissionError):
    """Somebody else can write to a folder or a file, or put another one in its place. The message has the fix."""


def own_folder(path: Path) -> Path:
    """Return a folder's path without links in it, after a look at every folder on the way; what is absent is made.

    Each folder is opened in the one before it, and no link is followed unread: a link of this user or of root is walked
    as its text says. What is made has the mode 0700. If the system does not tell owners (Windows), nothing is checked.

    Args:
        path: of the folder.

    Raises:
        Unsafe: the folder is not this user's, or others may write there; or one above it belongs to somebody else than
            this user or root, or others may write there and it is not sticky, as /tmp is.
        OSError: it cannot be made or entered.

    Guarantee: until this user or root changes a mode, nobody else can change what the returned path stands for.
    """
    if not hasattr(os, "geteuid"):
        path.mkdir(parents=True, exist_ok=True)
        return path
    left, where, num_links = [*reversed(path.absolute().parts)], Path(), 0
    place = os.open(os.sep, _PLACE)
    try:
        while left:
            name = left.pop()
            if (target := _link(place, where, name)) is not None:
                num_links += 1
                if num_links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                left += reversed(Path(target).parts)
                continue
            inner = _open_or_make(place, where, name)
            os.close(place)
            place, where = inner, where.parent if name == os.pardir else where / name
            _check(os.fstat(place), where, not left)
        _check(os.fstat(place), where, True)  # a link to "." as the last name leads to what was passed on the way
    finally:
        os.close(place)
    return where


def _link(place: int, where: Path, name: str) -> str | None:
    """Return what a link says; None for anything else, and for what is not there."""
    try:
        found = os.stat(name, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        error.filename = str(where / name)
        raise
    if not stat.S_ISLNK(found.st_mode):
        return None
    if _owner(found) not in (0, os.geteuid()):
        raise Unsafe(f"the link {where / name} belongs to user {_owner(found)}; delete it, or name another folder")
    return os.readlink(name, dir_fd=place)


def _open_or_make(place: int, where: Path, name: str) -> int:
    """Return the open folder of that name in an open folder, made if it is absent."""
    try:
        with suppress(FileNotFoundError):
            return os.open(name, _PLACE, dir_fd=place)
        with suppress(FileExistsError):  # somebody was faster
            os.mkdir(name, 0o700, dir_fd=place)
        return os.open(name, _PLACE, dir_fd=place)
    except OSError as error:
        error.filename = str(where / name)
        raise


def _check(found: os.stat_result, where: Path, is_last: bool) -> None:
    """Raise Unsafe if others can write to a folder, or replace what lies in it."""
    own, owner = os.geteuid(), _owner(found)
    if owner != own and (is_last or owner != 0):
        raise Unsafe(f"{where} belongs to user {owner}, and this is user {own}; name a folder of your own")
    if found.st_mode & _OTHERS and (is_last or not found.st_mode & stat.S_ISVTX):
        raise Unsafe(f"others may write to {where}; run: chmod go-w '{where}'")


def _owner(found: os.stat_result) -> int:
    return found.st_uid


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder of the mode 0700 for this process, below the folder of temporary files; it goes with the block.

    Raises:
        Unsafe: others could put another one in its place.
        OSError: it cannot be made.
    """
    above = Path(tempfile.gettempdir())
    if hasattr(os, "geteuid") and (mode := above.stat().st_mode) & _OTHERS and not mode & stat.S_ISVTX:
        raise Unsafe(f"others may rename what lies in {above}; run: chmod +t '{above}', or name another in TMPDIR")
    with tempfile.TemporaryDirectory(prefix="specdec-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def open_plain(path: str | Path, flags: int, mode: int = 0o666, *, dir_fd: int | None = None) -> int:
    """Return the descriptor of a regular file that has no second name; a link in place of it is not followed.

    Args:
        path: of the file.
        flags, mode, dir_fd: as for ``os.open``.

    Raises:
        Unsafe: it is a link, no regular file, or has names elsewhere: to write to it might change another file.
        OSError: it cannot be opened.
    """
    try:
        file = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), mode, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Unsafe(f"{path} is a link, and might lead to a file of somebody else; delete it") from error
        raise
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return file
    os.close(file)
    raise Unsafe(f"{path} is no regular file, or has a second name somewhere; delete it")


def is_own(file: int) -> bool:
    """Tell whether an open file belongs to this user, and others may not write to it."""
    found = os.fstat(file)
    return not hasattr(os, "geteuid") or (_owner(found) == os.geteuid() and not found.st_mode & _OTHERS)
