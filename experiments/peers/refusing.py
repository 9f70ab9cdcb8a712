"""What a peer says if it cannot do what is asked."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RefusedArm:
    """A peer or a strategy that cannot do what is asked; nothing runs, and the table says why.

    Attributes:
        name: of it.
        words: its own.
    """

    name: str
    words: str


class PeerRefusal(ValueError):
    """What a program cannot do, or lacks here; anything else that fails is a fault, and no row of a table."""


def words_of(error: Exception) -> str:
    """Return the first line of what an error says."""
    return (str(error) or repr(error)).splitlines()[0]


def refusal_of(call: Callable[[], object], kind: type[Exception]) -> str | None:
    """Return the words in which a call refuses, by an error of that kind; None if it returns."""
    try:
        call()
    except kind as error:
        return words_of(error)
    return None
