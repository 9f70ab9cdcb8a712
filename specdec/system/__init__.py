"""What touches the user's machine: folders and files that are ours, whole or not at all; logs; second module names."""

from specdec.system.holding import LOCK, FolderInUse, hold, holder
from specdec.system.logs import LOG, num_own_calls, quiet_imports, warn_once
from specdec.system.own_folder import Unsafe, is_own, open_plain, own_folder, private_folder
from specdec.system.own_modules import register
from specdec.system.whole_file import keep_first, read_object, write_whole

__all__ = [
    "LOCK",
    "LOG",
    "FolderInUse",
    "Unsafe",
    "hold",
    "holder",
    "is_own",
    "keep_first",
    "num_own_calls",
    "open_plain",
    "own_folder",
    "private_folder",
    "quiet_imports",
    "read_object",
    "register",
    "warn_once",
    "write_whole",
]
