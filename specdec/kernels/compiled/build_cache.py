"""The folder of compiled libraries: where it is, who may write there, and one build at a time."""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specdec.system import LOG, is_own, open_plain, own_folder

with suppress(ImportError):  # no POSIX system: nothing is compiled there
    import fcntl

NAMED = "SPECDEC_CACHE"
# Some network file systems keep no locks. Two builds at once then cost time, and nothing else.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
SEAL_BYTES = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """Return the folder of compiled libraries, made if it is absent: "native", with the mode 0700.

    It lies in ``$SPECDEC_CACHE``, else in ``$XDG_CACHE_HOME/specdec``, else in ``~/.cache/specdec``. Whoever may write
    there, or put another folder in its place, may run code as this user.

    Raises:
        Unsafe: others may do so; see ``own_folder``.
        OSError: it cannot be made, or there is no home.
    """
    return own_folder(cache_base() / "native")


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
def lock(path: Path) -> Iterator[bool]:
    """Hold ``flock`` on a file, made if it is absent, until the block ends; give whether its file system keeps locks.

    The system drops the lock with its process, however that ends; the file stays and holds nothing by itself. A process
    that has to wait says so.
    """
    file = open_plain(path, os.O_WRONLY | os.O_CREAT)
    try:
        yield _lock(file, path)
    finally:
        # Closing is not enough: a process forked meanwhile has the same open file.
        with suppress(OSError):  # a file system that keeps no locks
            fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def _lock(file: int, path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        LOG.warning(f"specdec: waiting for another process that compiles and holds {path}")
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def seal(path: Path) -> None:
    """Append to a library the SHA-256 of its bytes. The loader does not read what stands after the last section.

    Whatever the umask, nobody else may write to it.
    """
    path.chmod(0o700)
    digest = hashlib.sha256(path.read_bytes()).digest()
    with path.open("ab") as file:
        file.write(digest)


def is_whole(path: Path) -> bool:
    """Tell whether a library is there as ``open_whole`` wants it."""
    file = open_whole(path)
    if file is None:
        return False
    os.close(file)
    return True


def open_whole(path: Path) -> int | None:
    """Return a descriptor of a library that is this user's own, as it was sealed; None if there is none.

    To load a truncated one may kill the process (SIGBUS); one that somebody else put there is foreign code.

    Cost: one reading of the file.
    """
    try:
        file = open_plain(path, os.O_RDONLY)
    except OSError:
        return None
    with suppress(OSError), os.fdopen(file, "rb", closefd=False) as reader:
        content = reader.read()
        if is_own(file) and hashlib.sha256(content[:-SEAL_BYTES]).digest() == content[-SEAL_BYTES:]:
            return file
    os.close(file)
    return None
