"""Before the libraries of a program are loaded: its help needs none of them, and Ctrl-C ends it at once."""

import os
import signal
import sys
from types import FrameType

from exactspec.stand_ins import are_up, asks_for_help, put_up

# The status of a program that Ctrl-C ended, as shells have it.
INTERRUPTED = 130


def starting(package: str) -> None:
    """Prepare this process if it is ``python -m PACKAGE.MODULE``.

    While Python locates the module, the first argument is ``-m``: no other program that imports the package is touched.

    Args:
        package: which is being imported.
    """
    words = sys.orig_argv
    if sys.argv[:1] != ["-m"] or "-m" not in words:
        return
    module, *rest = words[words.index("-m") + 1 :]
    if not module.startswith(f"{package}."):
        return
    if asks_for_help(rest) and not are_up():
        put_up()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where whoever started it ignores Ctrl-C
        signal.signal(signal.SIGINT, _end)


def allow_interrupt() -> None:
    """Let Ctrl-C interrupt the program from here on."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    """End: some libraries, interrupted as they are loaded, would raise another error."""
    module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    try:
        os.write(2, f"python -m {module}: interrupted\n".encode())
    finally:  # whether or not anybody reads it
        os._exit(INTERRUPTED)
