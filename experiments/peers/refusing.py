"""What a peer says if it cannot do what is asked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from experiments.arms import Arm


@dataclass(frozen=True)
class RefusedArm:
    """A peer that cannot do what is asked; nothing runs, and the table says why.

    Attributes:
        name: of the peer.
        words: its own.
    """

    name: str
    words: str


class Peer(Arm, Protocol):
    """An arm of another program, which may refuse a batch."""

    def refusal(self, batch_size: int) -> str | None:
        """Return what the program says to a batch of so many short prompts; None if it decodes them."""


def words_of(error: Exception) -> str:
    """Return the first line of what an error says, as a cell of a table."""
    return (str(error) or repr(error)).splitlines()[0].replace("|", "/")


def refusal_of(call: Callable[[], object]) -> str | None:
    """Return the words of whatever a call raises; None if it returns."""
    try:
        call()
    except Exception as error:  # whatever a library raises are its words
        return words_of(error)
    return None
