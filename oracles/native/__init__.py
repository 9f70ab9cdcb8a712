"""The native pass: a whole forward pass in one call of compiled C++, built from the sources in `cpp`."""

from oracles.native.native_transformer import NativeMissing, NativeTransformer
from specdec.kernels.compiled import NativeUnavailable

__all__ = ["NativeMissing", "NativeTransformer", "NativeUnavailable"]
