"""The parser of every program's command line, and the words that start a program."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from exactspec import stand_ins
from exactspec.listing import command_for

# What the command sets in the program that it runs.
STARTED_AS = "STARTED_AS"
# A longer usage would push the error, or the options, off the screen.
USAGE_LINES = 12
EVERY = "all"
_LEFT_OUT = "[OPTIONS]"


def command() -> str | None:
    """Return how this program was started, for its usage; None: neither with the command nor as a module."""
    main = sys.modules["__main__"]
    started: str | None = getattr(main, STARTED_AS, None)
    if started is not None or main.__spec__ is None:
        return started
    return f"python -m {main.__spec__.name.removesuffix('.__main__')}"


def command_like_this(module: str) -> str:
    """Return how to start another of our programs in the same way as this one.

    Args:
        module: that holds it, such as ``experiments.report``.
    """
    by_command = getattr(sys.modules["__main__"], STARTED_AS, None) is not None
    return f"exactspec {command_for(module) or module}" if by_command else f"python -m {module}"


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """Return a whole number of at least 0."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    value = int(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
    return value


def number_in(interval: str) -> Callable[[str], float]:
    """Return a reader of numbers in an interval, such as "[0, 1)"; it raises ArgumentTypeError for any other text."""
    low, high = map(float, interval[1:-1].split(","))
    holds_low, holds_high = interval.startswith("["), interval.endswith("]")

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not (low < value < high or (holds_low and value == low) or (holds_high and value == high)):
            raise argparse.ArgumentTypeError(f"must lie in {interval}, got {text}")
        return value

    return number


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """End the program of that name, with the reason, if an argument or a file that it names is unusable."""
    try:
        yield
    except (OSError, ValueError) as error:
        # A strategy names itself, and may be the program.
        raise SystemExit(f"{name}: {str(error).removeprefix(f'{name}: ')}") from error


class _Help(argparse.Action):
    """Print the help, or that of a folded group, and end the program."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, name: Any, option: str | None = None
    ) -> None:
        """Print it."""
        assert isinstance(parser, Parser)
        sys.stdout.write(parser.help_of(name or None))
        parser.exit()


class Parser(argparse.ArgumentParser):
    """Parse options, which must be written out; an error is printed first and the usage, if it is short, last.

    A folded group is one of many alike: ``--help`` names it, ``--help NAME`` prints its options.

    Args:
        description: its lines are kept, without the marks of code.
        options: of ``argparse.ArgumentParser``.
    """

    def __init__(self, description: str | None = None, **options: Any) -> None:
        ours = {
            "prog": command(),
            "formatter_class": argparse.RawDescriptionHelpFormatter,
            "allow_abbrev": False,
            "add_help": False,
        }
        plain = None if description is None else description.replace("``", "")
        super().__init__(description=plain, **ours | options)
        self._folded: dict[str, Any] = {}
        self._help = _Help(["-h", "--help"], argparse.SUPPRESS, nargs=0, help="show this help message and exit")
        self._help.default = argparse.SUPPRESS
        self._add_action(self._help)

    def add_folded_group(self, name: str) -> Any:
        """Return a group of options, as ``add_argument_group`` does, which the help names but does not print."""
        group = self.add_argument_group(name)
        self._folded[name] = group
        self._help.nargs, self._help.metavar = "?", "NAME"
        self._help.help = (
            f"show this help message and exit; with a name, the options of {', '.join(self._folded)} or all"
        )
        return group

    def help_of(self, name: str | None) -> str:
        """Return the help of the program (None), of a folded group, or of "all" groups."""
        if name is not None and name not in (*self._folded, EVERY):
            self.error(f"--help {name}: it is one of {', '.join((*self._folded, EVERY))}")
        groups, folded = self._action_groups, list(self._folded.values())
        if name in self._folded:
            self._action_groups = [self._folded[name]]
        elif name is None:
            self._action_groups = [group for group in groups if group not in folded]
        try:
            return self.format_help()
        finally:
            self._action_groups = groups

    def format_help(self) -> str:
        """Return the help, after a usage that leaves out the options if they are many."""
        given = self.usage
        self.usage = self.format_usage().removeprefix("usage: ").rstrip("\n").replace("%", "%%")
        try:
            return super().format_help()
        finally:
            self.usage = given

    def format_usage(self) -> str:
        """Return the usage, without the options if they are many."""
        usage = super().format_usage()
        if usage.count("\n") <= USAGE_LINES:
            return usage
        positional = [action.metavar or action.dest for action in self._get_positional_actions()]
        return f"usage: {' '.join([self.prog, _LEFT_OUT, *map(str, positional)])}\n"

    def error(self, message: str) -> NoReturn:
        """End the program with status 2: what is wrong, then the usage, or what lists the options."""
        usage = self.format_usage()
        more = f"; {self.prog} --help lists them" if _LEFT_OUT in usage else ""
        self.exit(2, f"{self.prog}: error: {message}\n\n{usage.rstrip()}{more}\n")

    def parse_args(  # type: ignore[override]  # our programs give no other namespace
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Return the arguments.

        Raises:
            RuntimeError: help was asked for, so libraries are stand-ins, but the parser did not print it.
        """
        parsed = super().parse_args(args, namespace)
        if stand_ins.are_up():
            raise RuntimeError(f"{self.prog} was asked for its help, and took that for something else")
        return parsed
