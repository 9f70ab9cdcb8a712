"""Compiled C++: built at first use, kept in the user's cache; headers that all units share; laws and draws."""

from specdec.native.build import HEADERS, Unit, library
from specdec.native.unavailable import NativeUnavailable

__all__ = ["HEADERS", "NativeUnavailable", "Unit", "library"]
