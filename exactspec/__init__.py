"""The command ``exactspec``, and what has to run before a library is loaded. The library itself is ``specdec``."""

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    """Say where the library is.

    Raises:
        AttributeError: always.
    """
    raise AttributeError(f"exactspec has no {name!r}: it is the command's package; the library is `import specdec`")
