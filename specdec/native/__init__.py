"""Compiled C++, built at first use and kept in the user's cache: laws, draws, penalties, verdicts and walks."""

from specdec.native.build import HEADERS, Unit, library
from specdec.native.cache import cache_base
from specdec.native.laws import NATIVE_DTYPES, NativeLaws, laws_library
from specdec.native.memory import integers, place
from specdec.native.open_verdict import OpenVerdict
from specdec.native.penalties import NativePenalties
from specdec.native.unavailable import NativeUnavailable
from specdec.native.walks import Drafted, Judging, Limits, NativeWalks, Walked, Way

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
