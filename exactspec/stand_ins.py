"""A program's help without the libraries that the program needs.

The options of a program come from modules that import torch and more, which takes seconds. ``--help`` uses
nothing of those libraries: stand-ins take their places until the process ends, which is after the help is printed.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

OURS = ("exactspec", "specdec", "drafts", "oracles", "experiments")
HELP = ("-h", "--help")


def asks_for_help(words: Sequence[str]) -> bool:
    """Tell whether a command line asks for help; there are no options after ``--``."""
    options = words[: words.index("--")] if "--" in words else words
    return any(word in HELP for word in options)


def is_spared(module: str) -> bool:
    """Tell whether help can do without a module: it is neither ours nor of the standard library."""
    top = module.partition(".")[0]
    return top not in OURS and top not in sys.stdlib_module_names and not top.startswith("_")


class StandIn:
    """Allow any attribute, index, call and union; as a decorator return what is decorated, as a base class nothing."""

    def __getattr__(self, name: str) -> "StandIn":
        """Return another stand-in."""
        return _attribute(name)

    def __call__(self, *given: Any, **options: Any) -> Any:
        """Return the function or class that is decorated, else another stand-in."""
        decorates = len(given) == 1 and not options and callable(given[0]) and not isinstance(given[0], StandIn)
        return given[0] if decorates else StandIn()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """Return no base for a class that derives from it."""
        return ()

    def __getitem__(self, key: object) -> "StandIn":
        """Return another stand-in."""
        return StandIn()

    def __or__(self, other: object) -> "StandIn":
        """Return itself, as a part of an annotation."""
        return self

    __ror__ = __or__


class StandInModule(ModuleType):
    """A module that has every name, and every module below it."""

    __path__: list[str] = []  # noqa: RUF012, the import system reads it from the module

    def __getattr__(self, name: str) -> StandIn:
        """Return a stand-in."""
        return _attribute(name)


def _attribute(name: str) -> StandIn:
    """Return a stand-in for an attribute; those that Python itself asks for are absent."""
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(name)
    return StandIn()


class _StandInFinder(MetaPathFinder, Loader):
    """Find stand-ins for all modules that help does not need."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how a stand-in is made."""
        return ModuleSpec(fullname, self, is_package=True) if is_spared(fullname) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the stand-in."""
        return StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it is."""


def put_up() -> None:
    """Let stand-ins replace all libraries that are imported from here on, until the process ends."""
    sys.meta_path.insert(0, _StandInFinder())


def are_up() -> bool:
    """Tell whether libraries may be stand-ins, with which only help can be printed."""
    return any(isinstance(finder, _StandInFinder) for finder in sys.meta_path)
