"""A folder of results, held by one process at a time."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # no POSIX system
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
# How often a folder is made again that a holder took away.
TRIES = 100


class Held(ValueError):
    """Another process holds the folder."""


@contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """Make a folder of results where it is absent, and hold it against every other process until the block ends.

    The claim is ``flock``'s on the file "lock" in the folder. The system drops it with the process, however that ends:
    a file that a killed process left holds nothing. If there is no ``flock`` (Windows), the folder is made and is not
    held, so that one experiment run twice at once still loses units there.

    Args:
        folder: of one experiment; it goes again if nothing was written.

    Raises:
        ValueError: the folder cannot be made, written or locked; with the reason.
        Held: another process holds it.
    """
    try:
        lock = _lock_in(folder)
    except OSError as error:
        raise ValueError(f"--out: {folder} cannot be written: {error}; give a folder that can be") from error
    try:
        yield folder
    finally:
        with suppress(OSError):
            # Under the lock: whoever has opened this file meanwhile finds, once it is locked, that it is gone.
            (folder / LOCK).unlink()
        lock.close()
        with suppress(OSError):  # not empty, as a rule
            folder.rmdir()


def _lock_in(folder: Path) -> IO[str]:
    """Return the lock of a folder, which is made where it is absent: its last holder may just take it away."""
    tries = 1
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _locked(folder / LOCK)
        except (FileNotFoundError, FileExistsError):
            if tries == TRIES:
                raise
            tries += 1


def _locked(path: Path) -> IO[str]:
    """Return the lock's file, open and locked; it says which process holds it."""
    while True:
        with ExitStack() as stack:
            file = stack.enter_context(path.open("a+", encoding="utf-8"))
            try:
                if fcntl is not None:
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise Held(
                    f"{path.parent} is held by another process ({file.read()}) that runs this very experiment: let it "
                    "end, or give another folder with --out"
                ) from None
            if _stands(file, path):
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                stack.pop_all()
                return file


def _stands(file: IO[str], path: Path) -> bool:
    """Tell whether an open file still bears its name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
