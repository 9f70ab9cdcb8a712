"""What computes laws, penalties and draws: one object, chosen when a decoder is made."""

from specdec.kernels.compiled import FILTERS
from specdec.kernels.draws import bits_of, extend, extend_by_all, only_points
from specdec.kernels.native import REFERENCE, NativeKernels, best_kernels, native_kernels, resolve_kernels
from specdec.kernels.reference import PENALTIES, Kernels

__all__ = [
    "FILTERS",
    "PENALTIES",
    "REFERENCE",
    "Kernels",
    "NativeKernels",
    "best_kernels",
    "bits_of",
    "extend",
    "extend_by_all",
    "native_kernels",
    "only_points",
    "resolve_kernels",
]
