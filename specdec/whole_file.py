"""Files that are replaced as a whole: whoever reads one, whenever, sees the old one or the new one."""

import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file, so that at every moment, and after a crash, it is the old one or the new one.

    Args:
        path: of the file. What is written stands beside it first, as ``<name>.new``; a kill may leave that behind.
        content: text is written as UTF-8.
    """
    beside = path.with_name(f"{path.name}.new")
    with beside.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
