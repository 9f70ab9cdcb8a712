"""The parser of every program's command line, and the words that start a program."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from exactspec import stand_ins
from exactspec.listing import command_for

# What the command sets in the program that it runs.
STARTED_AS = "STARTED_AS"
# A longer usage would push the error off the screen.
USAGE_LINES = 12


def command() -> str | None:
    """Return how this program was started, for its usage; None: neither by the command nor as a module."""
    main = sys.modules["__main__"]
    started: str | None = getattr(main, STARTED_AS, None)
    if started is not None or main.__spec__ is None:
        return started
    return f"python -m {main.__spec__.name.removesuffix('.__main__')}"


def command_like_this(module: str) -> str:
    """Return how another of our programs is started in the way in which this one was.

    Args:
        module: that holds it, such as ``experiments.report``.
    """
    by_command = getattr(sys.modules["__main__"], STARTED_AS, None) is not None
    return f"exactspec {command_for(module) or module}" if by_command else f"python -m {module}"


class Parser(argparse.ArgumentParser):
    """Parse options that are written out; an error stands first, and the usage, if it is short, last.

    Args:
        description: whose lines are kept, without the marks of code.
        options: of ``argparse.ArgumentParser``.
    """

    def __init__(self, description: str | None = None, **options: Any) -> None:
        ours = {
            "prog": command(),
            "formatter_class": argparse.RawDescriptionHelpFormatter,
            "allow_abbrev": False,
        }
        plain = None if description is None else description.replace("``", "")
        super().__init__(description=plain, **ours | options)

    def error(self, message: str) -> NoReturn:
        """End the program with status 2: what is wrong, then the usage, or how the options are listed."""
        usage = self.format_usage()
        if usage.count("\n") > USAGE_LINES:
            usage = f"usage: {self.prog} [OPTIONS]; {self.prog} --help lists them\n"
        self.exit(2, f"{self.prog}: error: {message}\n\n{usage}")

    def parse_args(  # type: ignore[override]  # our programs give no other namespace
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Return the arguments.

        Raises:
            RuntimeError: a help was asked for, so that libraries are stand-ins, and the parser did not print it.
        """
        parsed = super().parse_args(args, namespace)
        if stand_ins.are_up():
            raise RuntimeError(f"{self.prog} was asked for its help, and took that for something else")
        return parsed
