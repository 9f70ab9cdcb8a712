"""Tables of rotary positions, with the same bits on every machine."""

from typing import NamedTuple

import torch
from torch import Tensor

from oracles.native import bindings
from oracles.native.host_memory import floats
from oracles.transformer.config import TransformerConfig
from oracles.transformer.rotary import inverse_frequencies, rotary_magnitude


class Tables(NamedTuple):
    """Cosines and sines of positions from 0 on, ``[positions, rotary_size / 2]`` float32.

    Attributes:
        cosines, sines: whoever holds these keeps ``places`` valid.
        places: the addresses of both, and their number of positions.
    """

    cosines: Tensor
    sines: Tensor
    places: tuple[int, int, int]


def tables_of(config: TransformerConfig, most: int, end: int) -> Tables:
    """Return tables of all positions below ``end``, and of some more, up to ``most`` in all.

    Args:
        config: rotary size and frequencies; without rotary positions ``most`` is 0.
        most: the most positions possible.
        end: positions that are needed.
    """
    nothing = torch.empty(0, dtype=torch.float64, device="cpu")
    frequencies = inverse_frequencies(config) if config.rotary_size else nothing
    pairs, size = len(frequencies), min(max(256, 1 << max(end - 1, 0).bit_length()), most)
    cosines, sines = floats(size, pairs), floats(size, pairs)
    places = cosines.data_ptr(), sines.data_ptr(), size
    bindings.functions().specdec_rotations(frequencies.data_ptr(), pairs, 0, size, *places[:2])
    if (magnitude := rotary_magnitude(config)) != 1.0:
        for table in (cosines, sines):
            table.mul_(magnitude)
    return Tables(cosines, sines, places)
