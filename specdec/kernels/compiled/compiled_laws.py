"""The library of laws, draws, penalties and walks, and the filters, whose names are in ``laws.h``."""

import torch

from specdec.kernels.compiled.build import HEADERS, LibrarySources
from specdec.kernels.compiled.schema import structure

LAWS = LibrarySources("the native laws", HEADERS / "laws.cpp", (HEADERS,))
NATIVE_DTYPES = (torch.float32, torch.float64)
NEUTRAL: dict[str, float] = structure(HEADERS / "laws.h", "Sampling").neutral
FILTERS = tuple(NEUTRAL)
