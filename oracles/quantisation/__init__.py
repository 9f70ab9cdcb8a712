"""Linear layers in few bits: formats, rounding to the nearest, and what to do with the weights before."""

from oracles.quantisation.formats import (
    FLOATS,
    FORMATS,
    INT4,
    INT8,
    INT8_DYNAMIC,
    K_TYPES,
    Q4_0,
    Q4_1,
    Q4_K,
    Q6_K,
    Q8_0,
    STORED,
    WHOLE,
    Format,
    bytes_each,
)
from oracles.quantisation.methods import METHODS, Method
from oracles.quantisation.quantised import Quantised

__all__ = [
    "FLOATS",
    "FORMATS",
    "INT4",
    "INT8",
    "INT8_DYNAMIC",
    "K_TYPES",
    "METHODS",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q6_K",
    "Q8_0",
    "STORED",
    "WHOLE",
    "Format",
    "Method",
    "Quantised",
    "bytes_each",
]
