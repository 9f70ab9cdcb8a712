"""Compiled C++, built at first use and kept in the user's cache: laws, draws, penalties, verdicts and walks."""

from specdec.kernels.compiled.build import HEADERS, LibrarySources, NativeUnavailable, library
from specdec.kernels.compiled.build_cache import cache_base
from specdec.kernels.compiled.compiled_laws import FILTERS, LAWS, NATIVE_DTYPES, NEUTRAL
from specdec.kernels.compiled.faults import Fault, FaultCode
from specdec.kernels.compiled.schema import OtherKind, enumeration, fields_of, place
from specdec.kernels.compiled.walks import NativeWalks, PackedDrafts, Way

__all__ = [
    "FILTERS",
    "HEADERS",
    "LAWS",
    "NATIVE_DTYPES",
    "NEUTRAL",
    "Fault",
    "FaultCode",
    "LibrarySources",
    "NativeUnavailable",
    "NativeWalks",
    "OtherKind",
    "PackedDrafts",
    "Way",
    "cache_base",
    "enumeration",
    "fields_of",
    "library",
    "place",
]
