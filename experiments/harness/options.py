"""Options of a program, each stated once, as a field of a dataclass."""

from collections.abc import Callable, Sequence
from dataclasses import field, fields
from typing import Any, TypeVar

from exactspec.parser import Parser, positive

Chosen = TypeVar("Chosen")


def option(default: Any, text: str, exclusive: bool = False, measured: bool = True, **more: Any) -> Any:
    """Return a field of a frozen dataclass that is an option of its name.

    Args:
        default: of the field. Whole numbers are at least 1; a tuple takes several values; False is a switch.
        text: of the help; the default is added, unless the text ends with brackets that name it.
        exclusive: it excludes the other exclusive ones.
        measured: whether what is measured depends on it.
        more: for ``argparse``.
    """
    return field(default=default, metadata={"text": text, "exclusive": exclusive, "measured": measured, "more": more})


def _parser_arguments(default: Any, text: str, more: dict[str, Any]) -> dict[str, Any]:
    """Return what ``argparse`` is told of an option."""
    if default is False:
        return {"action": "store_true", "help": text}
    several = isinstance(default, tuple)
    one = default[0] if several else default
    kind = positive if isinstance(one, int) else str if one is None else type(one)
    told = " ".join(map(str, default)) if several else default
    shown = text if told is None or text.endswith(")") else f"{text} ({told})".lstrip()
    return {"default": default, "help": shown, "type": kind, **({"nargs": "+"} if several else {}), **more}


def _freeze(value: Any) -> Any:
    """Return a list as a tuple, each entry once, and anything else as it is."""
    return tuple(dict.fromkeys(value)) if isinstance(value, list) else value


def parse_options(
    kind: type[Chosen],
    description: str | None,
    argv: Sequence[str] | None,
    complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: values,
    problem: Callable[[Chosen], str | None] = lambda _: None,
) -> Chosen:
    """Return what a command line asks for; a value that is given twice counts once.

    Args:
        kind: dataclass whose fields, those that ``option`` made, are the options.
        description: of the program.
        argv: None: the words of this process.
        complete: returns the final values, those that are not options included.
        problem: returns why the choice cannot be used; None: it can.

    Raises:
        SystemExit: an argument cannot be; with the reason.
    """
    parser = Parser(description)
    groups: dict[bool, Any] = {False: parser}
    for one in fields(kind):  # type: ignore[arg-type]
        if how := one.metadata:
            if how["exclusive"] not in groups:
                groups[True] = parser.add_mutually_exclusive_group()
            add = groups[how["exclusive"]].add_argument
            add(f"--{one.name.replace('_', '-')}", **_parser_arguments(one.default, how["text"], how["more"]))
    chosen = kind(**{name: _freeze(value) for name, value in complete(vars(parser.parse_args(argv))).items()})
    if told := problem(chosen):
        parser.error(told)
    return chosen
