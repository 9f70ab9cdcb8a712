"""Sources that draft with a head, which reads the hidden states of the decoder's oracle."""

from abc import ABC

from specdec.contracts import DraftSession, Head, Needs, Oracle, check_vocabulary, declared
from specdec.drafting.model_source import ModelSource


class HeadSource(ModelSource, ABC):
    """A source whose model is a head; it says its name, and how its head is put to work.

    Its arguments are those of ``SampledSource``.

    Attributes:
        head: which must be one of the decoder's oracle.
    """

    name: str
    head: Head

    @property
    def needs(self) -> Needs:
        """What it asks of the engine."""
        return Needs(hidden=self.head.layers)

    @property
    def vocab_size(self) -> int:
        """The vocabulary drafted from, the oracle's."""
        return self.head.vocab_size

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        """Return a session for a run.

        Raises:
            ValueError: another oracle than the head was loaded with, by its vocabulary or layers.
        """
        check_vocabulary(f"draft {self.name!r}", self.head.vocab_size, self.head.oracle.tokenizer, oracle)
        _check_layers(self.name, self.head, oracle)
        return super().open(oracle, num_rows, capacity)


def _check_layers(name: str, head: Head, oracle: Oracle) -> None:
    """Raise ValueError if an oracle cannot be the one that a head was loaded with; ``name`` is the source's."""
    there = declared(oracle, "hidden_layers")
    if max(head.layers) >= there:
        gives = f"gives those of layers 0..{there - 1}: choose among these, or" if there else "gives none:"
        raise ValueError(
            f"draft {name!r} reads the outputs of layers {head.layers}, and the oracle ({oracle.backend}) {gives} "
            "decode with the oracle that the head was loaded with"
        )
    own, given = (_sizes(one) for one in (head.oracle, oracle))
    if own != given:
        raise ValueError(
            f"draft {name!r} has a head that was loaded with an oracle of {own[0]} layers, {own[1]} wide, and the "
            f"decoder's has {given[0]} layers, {given[1]} wide: give the same oracle to both"
        )


def _sizes(oracle: Oracle) -> tuple[int, int]:
    """Return how many layers an oracle has and how wide they are, as far as it tells."""
    return declared(oracle, "hidden_layers"), declared(oracle, "hidden_size")
