"""A folder that one process at a time writes to."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from specdec.system.own_folder import open_plain

try:
    import fcntl
except ImportError:  # no POSIX system
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
# How often a folder that a holder removed is made again.
TRIES = 100


class FolderInUse(ValueError):
    """Another process holds the folder."""


@contextmanager
def hold(folder: Path, argument: str) -> Iterator[Path]:
    """Make a folder if it is absent, and hold it against every other process until the block ends.

    The claim is ``flock``'s on the file "lock" in the folder. The system drops it with the process, however that ends:
    a file that a killed process left holds nothing. If there is no ``flock`` (Windows), the folder is made and is not
    held, so that one program run twice at once still loses work there.

    Args:
        folder: it is removed again if nothing was written.
        argument: by which the user named it, for messages.

    Raises:
        ValueError: the folder cannot be made, written or locked, or "lock" is no file of its own; with the reason.
        Held: another process holds it.
    """
    try:
        claim = _claim(folder, argument)
    except OSError as error:
        raise ValueError(f"{argument}: {folder} cannot be written: {error}; give a folder that can be") from error
    try:
        with claim:
            yield folder
    finally:
        with suppress(OSError):  # not empty, as a rule
            folder.rmdir()


def holder(folder: Path) -> int | None:
    """Return the id of the process that holds a folder, if it runs on this machine; else None, or without ``flock``.

    The lock itself is not touched: whoever tried it would be in the way of a process that just begins.
    """
    try:
        process = int((folder / LOCK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return process if fcntl is not None and _runs(process) else None


def _runs(process: int) -> bool:
    """Tell whether a process of this id runs on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def _claim(folder: Path, argument: str) -> ExitStack:
    """Return the claim on a folder, which is made if it is absent: its last holder may be removing it just now."""
    tries = 1
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return ExitStack() if fcntl is None else _lock_in(folder, argument)
        except (FileNotFoundError, FileExistsError):
            if tries == TRIES:
                raise
            tries += 1


def _lock_in(folder: Path, argument: str) -> ExitStack:
    """Return the claim on a folder that is there; its lock goes with it."""
    with ExitStack() as stack:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, place)
        stack.enter_context(_lock_file(place, folder, argument))
        # Under the lock: whoever has opened this file meanwhile finds, once it is locked, that it is gone.
        stack.callback(_unlink, place)
        return stack.pop_all()


def _lock_file(place: int, folder: Path, argument: str) -> IO[str]:
    """Return the lock's file in an open folder, open and locked; it says which process holds it."""
    while True:
        with ExitStack() as stack:
            lock = open_plain(LOCK, os.O_RDWR | os.O_CREAT, dir_fd=place)
            file = stack.enter_context(os.fdopen(lock, "r+", encoding="utf-8"))
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderInUse(
                    f"{folder} is held by another process ({file.read()}) that does this very work: let it end, "
                    f"or give another folder with {argument}"
                ) from None
            if _stands(file, place):
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                stack.pop_all()
                return file


def _stands(file: IO[str], place: int) -> bool:
    """Tell whether an open lock still bears its name."""
    try:
        return os.path.samestat(os.stat(LOCK, dir_fd=place, follow_symlinks=False), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _unlink(place: int) -> None:
    with suppress(OSError):
        os.unlink(LOCK, dir_fd=place)
