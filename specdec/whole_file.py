"""Files that are replaced as a whole: whoever reads one, whenever, sees the old one or the new one."""

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file, so that at every moment, and after a crash, it is the old one or the new one.

    Args:
        path: of the file. What is written stands beside it first, as ``<name>.<process>.new``; a kill may leave that
            behind.
        content: text is written as UTF-8.
    """
    os.replace(_written_beside(path, content), path)
    _keep_names(path.parent)


def keep_first(path: Path, content: str | bytes) -> None:
    """Write a file whole, unless there is one: of several processes at once one writes, and all find the same."""
    beside = _written_beside(path, content)
    with suppress(FileExistsError):
        os.link(beside, path)
    beside.unlink()
    _keep_names(path.parent)


def _written_beside(path: Path, content: str | bytes) -> Path:
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    with beside.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    return beside


def _keep_names(place: Path) -> None:
    """See the names in a folder to the disk."""
    if os.name == "posix":  # elsewhere a folder cannot be opened
        folder = os.open(place, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
