"""What EAGLE-3 heads have in common, whatever computes their passes."""

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import replace
from typing import Self

from oracles.heads.aux_layers import AuxLayers
from oracles.heads.eagle3_config import Eagle3Shape
from specdec.contracts import HostOracle


class Eagle3Base(ABC):
    """Say what a head is.

    Args:
        shape: of its network.
        oracle: lends embedding and head where the network has none.
        name: of the format, for its description.
        num_written: ids that it writes.

    Attributes:
        oracle, name, num_written: the same.
        aux_layers: the layers of the oracle that it reads, and by whose word.
        config: of its layer; the context is the oracle's.
    """

    eos_ids: tuple[int, ...] = ()
    chat_template = None
    num_layers, is_recorded, cache_format = 0, False, None
    backend: str

    def __init__(self, shape: Eagle3Shape, oracle: HostOracle, name: str, num_written: int) -> None:
        # The context is the oracle's, for what is checked of a call too.
        self.config = replace(shape.config, max_context=oracle.max_context)
        self.name, self.oracle, self.aux_layers, self.num_written = name, oracle, shape.layers, num_written

    @property
    @abstractmethod
    def weight_type(self) -> str:
        """What its weights are stored in."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Memory of its own weights."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name}, reads {self.aux_layers}, writes {self.num_written:,} of "
            f"{self.vocab_size:,} ids, {self.weight_type} weights of {self.weight_bytes / 1e6:,.1f} MB, {self.backend})"
        )

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose outputs it reads."""
        return self.aux_layers.outputs

    def reading(self, aux_layers: AuxLayers) -> Self:
        """Return the same head, its weights shared, as it reads other layers, as many."""
        other = copy(self)
        other.aux_layers = aux_layers
        return other

    @property
    def vocab_size(self) -> int:
        """True number of ids, the oracle's; logits have this width."""
        return self.oracle.vocab_size

    @property
    def tokenizer(self) -> object:
        """The oracle's."""
        return self.oracle.tokenizer

    @property
    def max_context(self) -> int:
        """Positions, as many as the oracle has."""
        return self.oracle.max_context
