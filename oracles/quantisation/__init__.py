"""Linear layers in few bits: formats, and rounding to nearest."""

from oracles.quantisation.formats import (
    FLOATS,
    FORMATS,
    INT4,
    INT8,
    INT8_DYNAMIC,
    Q4_0,
    Q4_1,
    Q4_K,
    Q6_K,
    Q8_0,
    STORED,
    WHOLE,
    Format,
    bytes_each,
    rounds_inputs,
)
from oracles.quantisation.quantised import QuantisedWeight

__all__ = [
    "FLOATS",
    "FORMATS",
    "INT4",
    "INT8",
    "INT8_DYNAMIC",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q6_K",
    "Q8_0",
    "STORED",
    "WHOLE",
    "Format",
    "QuantisedWeight",
    "bytes_each",
    "rounds_inputs",
]
