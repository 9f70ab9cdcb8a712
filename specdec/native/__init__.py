"""Compiled C++, built at first use and kept in the user's cache: laws, draws, verdicts, walks, lookups and more."""

from specdec.native.build import HEADERS, Unit, library
from specdec.native.cache import cache_base
from specdec.native.compacting import NativeCompacting, Standing, compiled_compacting
from specdec.native.laws import NATIVE_DTYPES, NativeLaws, compiled_laws, native_for
from specdec.native.lookups import NativeLookups, compiled_lookups, packed_search
from specdec.native.memory import integers, place
from specdec.native.open_verdict import OpenVerdict
from specdec.native.penalties import NativePenalties, compiled_penalties
from specdec.native.unavailable import NativeUnavailable
from specdec.native.walks import Drafted, Judging, Limits, NativeWalks, Walked, Way, compiled_walks

__all__ = [
    "HEADERS",
    "NATIVE_DTYPES",
    "Drafted",
    "Judging",
    "Limits",
    "NativeCompacting",
    "NativeLaws",
    "NativeLookups",
    "NativePenalties",
    "NativeUnavailable",
    "NativeWalks",
    "OpenVerdict",
    "Standing",
    "Unit",
    "Walked",
    "Way",
    "cache_base",
    "compiled_compacting",
    "compiled_laws",
    "compiled_lookups",
    "compiled_penalties",
    "compiled_walks",
    "integers",
    "library",
    "native_for",
    "packed_search",
    "place",
]
