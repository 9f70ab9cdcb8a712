"""Tables of rotary positions, with the same bits on every machine."""

from typing import NamedTuple

import torch
from torch import Tensor

from oracles.native import bindings
from oracles.native.host_memory import floats
from oracles.transformer.config import TransformerConfig
from oracles.transformer.rotary import inverse_frequencies


class Tables(NamedTuple):
    """Cosines and sines of positions from 0 on, ``[positions, rotary_size / 2]`` float32.

    Attributes:
        cosines, sines: who holds them keeps ``places``.
        places: the addresses of both, and how many positions they have.
    """

    cosines: Tensor
    sines: Tensor
    places: tuple[int, int, int]


class Rotations:
    """Tables of the positions met so far.

    Args:
        config: rotary size, frequencies and context.
    """

    def __init__(self, config: TransformerConfig) -> None:
        self._frequencies = (
            inverse_frequencies(config) if config.rotary_size else torch.empty(0, dtype=torch.float64, device="cpu")
        )
        self._most = config.max_context if config.rotary_size else 0
        self.tables = self._compute(min(256, self._most))

    def up_to(self, end: int) -> Tables:
        """Return tables of all positions below ``end``, cut at the context."""
        tables = self.tables
        if min(end, self._most) > tables.places[2]:
            # Another thread may store shorter ones meanwhile: what is returned is what was asked for.
            tables = self.tables = self._compute(min(1 << (end - 1).bit_length(), self._most))
        return tables

    def _compute(self, size: int) -> Tables:
        pairs = len(self._frequencies)
        cosines, sines = floats(size, pairs), floats(size, pairs)
        places = cosines.data_ptr(), sines.data_ptr(), size
        bindings.functions().specdec_rotations(self._frequencies.data_ptr(), pairs, 0, size, *places[:2])
        return Tables(cosines, sines, places)
