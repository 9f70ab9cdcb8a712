"""Files that are replaced as a whole: whoever reads one, whenever, sees the old one or the new one."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file, so that at every moment, and after a crash, it is the old one or the new one.

    Args:
        path: of the file. The content is written beside it first, as ``<name>.<process>.new``; a kill may leave that
            behind, an error does not.
        content: text is written as UTF-8.
    """
    with _beside(path, content) as beside:
        os.replace(beside, path)
    _keep_names(path.parent)


def keep_first(path: Path, content: str | bytes) -> None:
    """Write a file whole, unless there is one: of several processes at once one writes, and all find the same."""
    with _beside(path, content) as beside, suppress(FileExistsError):
        os.link(beside, path)
    _keep_names(path.parent)


def read_object(path: Path, names: Iterable[str], fix: str) -> dict[str, Any]:
    """Return the JSON object of a file.

    Args:
        path: of the file.
        names: that the object must have.
        fix: what the user may do about a broken file.

    Raises:
        ValueError: the file holds something else; with its path, the place and the fix.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is no JSON: {error}; {fix}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object; {fix}")
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{path} is damaged: it lacks {', '.join(map(repr, missing))}; {fix}")
    return found


@contextmanager
def _beside(path: Path, content: str | bytes) -> Iterator[Path]:
    """Write a file beside another one, whole; what is left of it at the end goes."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with beside.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        yield beside
    finally:
        beside.unlink(missing_ok=True)


def _keep_names(place: Path) -> None:
    """See the names in a folder to the disk."""
    if os.name == "posix":  # elsewhere a folder cannot be opened
        folder = os.open(place, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
