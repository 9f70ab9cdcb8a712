"""The entry point: one command for every program."""

import importlib
import runpy
import sys
from collections.abc import Sequence
from functools import partial

from exactspec import stand_ins
from exactspec.ending import run_program
from exactspec.listing import RUNNABLE, find_module, listing, module_of, nearest
from exactspec.parser import STARTED_AS


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run a program, or list them all; for an unknown name, tell the nearest.

    Args:
        argv: the command and its options; None: of this process.

    Returns:
        2 for an unknown command, 0 for the list and for a program that ends without a status of its own, else that of
        ``exactspec.ending``.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    return run_program(" ".join(["exactspec", *words[:1]]), partial(_main, words))


def _main(words: Sequence[str]) -> int:
    """Return the status of ``main``."""
    if not words or words[0] in stand_ins.HELP:
        print(listing())
        return 0
    name, *rest = words
    module = module_of(name)
    if module is None:
        return _unknown(name)
    return run(name, module, rest)


def _unknown(name: str) -> int:
    """Say that there is no such command, and which one is meant if one is near; return the status."""
    close = nearest(name)
    meant = "" if close is None else f"; did you mean {close}?"
    print(f"exactspec: error: no command {name!r}{meant}\n\nexactspec --help lists the commands", file=sys.stderr)
    return 2


def run(name: str, module: str, options: Sequence[str]) -> int:
    """Run a module as the program of this process.

    A folder of the user's with the name of one of our packages does not hide ours.

    Args:
        name: of the command, for the usage.
        module: that holds the program, if there is one of its name.
        options: of the program.

    Returns:
        0; 2 if there is no such program.
    """
    if stand_ins.asks_for_help(options):
        stand_ins.put_up()
    importlib.import_module("specdec.system.own_modules").keep_ours(*RUNNABLE, "drafts")
    if not _runs(module):
        return _unknown(name)
    sys.argv[1:] = options
    runpy.run_module(module, {STARTED_AS: f"exactspec {name}"}, run_name="__main__", alter_sys=True)
    return 0


def _runs(module: str) -> bool:
    """Tell whether a module runs as a program: it is there, and a package has a ``__main__``."""
    found = find_module(module)
    if found is not None and found.submodule_search_locations is not None:
        found = find_module(f"{module}.__main__")
    return found is not None
