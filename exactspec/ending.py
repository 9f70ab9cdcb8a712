"""How every program ends, whichever way it was started."""

import os
import select
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from exactspec.parser import command
from exactspec.starting import INTERRUPTED, allow_interrupt

# The status of a program whose reader has ended, as shells have it.
UNREAD = 141


def as_program(main: Callable[..., int | None], *given: Any) -> NoReturn:
    """Run a function as the program of this process, and end that with the status of ``run_program``."""
    sys.exit(run_program(command() or sys.argv[0], partial(main, *given)))


def run_program(name: str, program: Callable[[], int | None]) -> int | None:
    """Run a program.

    Args:
        name: of it, for one line on stderr if it is interrupted.
        program: returns its status; None: it has none of its own.

    Returns:
        130 after Ctrl-C, 141 if nobody reads the output any more (``exactspec | head``), else the program's.
    """
    try:
        try:
            status = _run_interruptible(name, program)
        except SystemExit:
            _flush()
            raise
        _flush()
    except BrokenPipeError as error:
        if not _is_unread(sys.stdout.fileno()):
            raise
        # What is left is flushed when the process ends: it goes nowhere, and says nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        stop = error.__context__
        if isinstance(stop, SystemExit) and isinstance(stop.code, str):  # a reason is told in any case
            raise stop from None
        return UNREAD
    return status


def _run_interruptible(name: str, program: Callable[[], int | None]) -> int | None:
    try:
        allow_interrupt()
        return program()
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _flush() -> None:
    if sys.stdout is not None:  # whoever starts a program may have closed it
        sys.stdout.flush()


def _is_unread(pipe: int) -> bool:
    """Tell whether what reads a pipe has ended."""
    poll = select.poll()
    poll.register(pipe, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
