"""The library's own lines, by ``logging.getLogger("specdec")``, and silence while other libraries are imported.

If ``logging`` is not configured, only warnings go to stderr: messages that a user must see, such as a wait for the
compiler. ``logging.getLogger("specdec").setLevel("ERROR")`` silences them, "INFO" and a handler show all.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import takewhile
from pathlib import Path
from traceback import walk_stack

_LIBRARY = f"{Path(__file__).parents[1]}{os.sep}"
LOG = logging.getLogger("specdec")


@cache
def warn_once(text: str) -> None:
    """Log a warning that one process need not hear twice."""
    LOG.warning(text)


def num_own_calls() -> int:
    """Return how many calls of the library lead to the function that asks, itself included: a warning skips them."""
    calls = walk_stack(sys._getframe(1))
    return sum(1 for _ in takewhile(lambda call: call[0].f_code.co_filename.startswith(_LIBRARY), calls))


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Suppress everybody's log messages below errors until the block ends.

    Some libraries warn as they are imported of what is none of their importer's business, such as kernels for another
    device.
    """
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)
