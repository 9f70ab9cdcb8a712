"""Before the libraries of a program are loaded: its help needs none of them, and Ctrl-C ends it at once."""

import os
import re
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
    if sys.argv[:1] != ["-m"]:
        return
    module, *rest = _module_and_arguments()
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


def _module_and_arguments() -> list[str]:
    """Return the words from the module of ``python -m`` on; ``-m`` may end a word of flags, and begin the module's."""
    words = iter(sys.orig_argv[1:])
    found = next(filter(None, (re.fullmatch(r"-[^\WWXc]*?m(.*)", word) for word in words)))
    return [found[1], *words] if found[1] else [*words]


def _end(number: int, frame: FrameType | None) -> None:
    """End: some libraries, interrupted as they are loaded, would raise another error."""
    try:
        os.write(2, f"python -m {_module_and_arguments()[0]}: interrupted\n".encode())
    finally:  # whether or not anybody reads it
        os._exit(INTERRUPTED)
