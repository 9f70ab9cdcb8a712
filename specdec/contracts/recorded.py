"""The contract of an oracle that repeats recorded texts: it says which id came next, and knows no law."""

from typing import Protocol, cast

from specdec.contracts.arrays import IntArray
from specdec.contracts.oracle import Oracle, declared


class RecordedOracle(Oracle, Protocol):
    """An oracle whose output is known beforehand, because somebody recorded it.

    Its ``score`` returns no logits but ``Scores.likeliest`` alone, so nothing of the vocabulary's size is ever made. A
    node whose whole path (ids that stand, ancestors, itself) is the beginning of a record with its whole prompt has the
    recorded id that follows; any other node has whatever id, for it cannot stand: one of its ancestors, or the node
    itself, is not what was recorded, so no verdict enters it.

    What reads logits is refused: temperatures above 0, penalties and biases, ``return_logprobs``, sources that need
    them, and drafting with such an oracle.
    """

    def recorded_length(self, prompt: IntArray, name: str) -> int:
        """Return the ids of the record that a prompt ``[L]`` selects, prompt and output together: its row ends there.

        Args:
            prompt: ids.
            name: of the prompt, for the message.

        Raises:
            ValueError: no record has this prompt.
        """


def as_recorded(oracle: Oracle) -> RecordedOracle | None:
    """Return an oracle of recorded texts as such; None: it is a model."""
    return cast(RecordedOracle, oracle) if declared(oracle, "is_recorded") else None


def check_has_laws(oracle: Oracle, who: str) -> None:
    """Raise ValueError if an oracle of recorded texts is given to what reads laws or times of passes."""
    if as_recorded(oracle) is not None:
        raise ValueError(f"{who} needs a model, and recorded text is none: give the model that wrote it")
