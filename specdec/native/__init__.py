"""Compiled C++: built at first use, kept in the user's cache; headers that all units share; laws and draws."""

from specdec.native.build import HEADERS, Unit, library
from specdec.native.laws import NATIVE_DTYPES, NativeLaws, compiled_laws, native_for
from specdec.native.unavailable import NativeUnavailable

__all__ = [
    "HEADERS",
    "NATIVE_DTYPES",
    "NativeLaws",
    "NativeUnavailable",
    "Unit",
    "compiled_laws",
    "library",
    "native_for",
]
