"""A folder of results, held by one process at a time."""

from contextlib import AbstractContextManager
from pathlib import Path

from specdec.system import LOCK, Held, hold

__all__ = ["LOCK", "Held", "claim_folder"]


def claim_folder(folder: Path) -> AbstractContextManager[Path]:
    """Make a folder of results where it is absent, and hold it until the block ends; see ``specdec.system.hold``."""
    return hold(folder, "--out")
