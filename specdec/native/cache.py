"""The folder of compiled libraries: where it is, who may write there, and one build at a time."""

import errno
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specdec.native.unavailable import NativeUnavailable

try:
    import fcntl
except ImportError:  # no POSIX system
    fcntl = None  # type: ignore[assignment]

NAMED = "SPECDEC_CACHE"
# Some network file systems keep no locks. Two builds at once then cost time, and nothing else.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
SEAL_BYTES = hashlib.sha256().digest_size


def say(text: str, end: str = "\n") -> None:
    """Tell the user, on stderr, what happens to compiled code."""
    print(text, end=end, file=sys.stderr, flush=True)


def cache_folder() -> Path:
    """Return the folder of compiled libraries, made if it is absent: "native", with the mode 0700.

    It lies in ``$SPECDEC_CACHE``, else in ``$XDG_CACHE_HOME/specdec``, else in ``~/.cache/specdec``. Whoever may write
    there may run code as this user, so a folder that others may write is refused.

    Raises:
        NativeUnavailable: it belongs to somebody else, or others may write there.
        OSError: it cannot be made, or there is no home.
    """
    folder = cache_base() / "native"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found, own = folder.stat(), os.geteuid()
    if found.st_uid != own:
        raise NativeUnavailable(
            f"{folder} belongs to user {found.st_uid}, and this is user {own}; name a folder of your own in {NAMED}"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NativeUnavailable(f"others may write to {folder}, and so put code there; run: chmod go-w '{folder}'")
    return folder


def cache_base() -> Path:
    """Return where the user keeps what can be made or fetched again, as an absolute path.

    Raises:
        OSError: there is no home.
    """
    if named := os.environ.get(NAMED):
        return Path(named).expanduser().absolute()
    # The specification of XDG_CACHE_HOME has a relative path ignored.
    if (xdg := Path(os.environ.get("XDG_CACHE_HOME", ""))).is_absolute():
        return xdg / "specdec"
    try:
        return Path.home() / ".cache" / "specdec"
    except RuntimeError as error:
        raise OSError(str(error)) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold ``flock`` on a file, made if it is absent, until the block ends.

    The system drops the lock with its process, however that ends; the file stays and holds nothing by itself. A process
    that has to wait says so.
    """
    with path.open("a") as file:
        _lock(file.fileno(), path)
        try:
            yield
        finally:
            # Closing is not enough: a process forked meanwhile has the same open file.
            if fcntl is not None:
                with suppress(OSError):  # a file system that keeps no locks
                    fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _lock(file: int, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"specdec: waiting for another process that compiles and holds {path}")
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def seal(path: Path) -> None:
    """Append to a library the SHA-256 of its bytes. The loader does not read what stands after the last section."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    with path.open("ab") as file:
        file.write(digest)


def is_whole(path: Path) -> bool:
    """Tell whether a sealed library is there as it was sealed. To load a truncated one may kill the process (SIGBUS).

    Cost: one reading of the file.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-SEAL_BYTES]).digest() == content[-SEAL_BYTES:]
