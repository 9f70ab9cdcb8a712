"""Compiled C++, built at first use and kept in the user's cache: laws, draws, penalties, verdicts and walks."""

from specdec.kernels.compiled.build import HEADERS, Unit, library
from specdec.kernels.compiled.build_cache import cache_base
from specdec.kernels.compiled.laws import NATIVE_DTYPES, NativeLaws, laws_library
from specdec.kernels.compiled.memory import integers, place
from specdec.kernels.compiled.open_verdict import OpenVerdict
from specdec.kernels.compiled.penalties import NativePenalties
from specdec.kernels.compiled.unavailable import NativeUnavailable
from specdec.kernels.compiled.walks import Drafted, Judging, Limits, NativeWalks, Walked, Way

__all__ = [
    "HEADERS",
    "NATIVE_DTYPES",
    "Drafted",
    "Judging",
    "Limits",
    "NativeLaws",
    "NativePenalties",
    "NativeUnavailable",
    "NativeWalks",
    "OpenVerdict",
    "Unit",
    "Walked",
    "Way",
    "cache_base",
    "integers",
    "laws_library",
    "library",
    "place",
]
