"""What a caller of ``oracles.load`` may choose: device, dtype, weights and backend, and which choices are refused."""

import warnings
from functools import cache
from typing import Literal

import torch

from oracles.native import NativeMissing, NativeTransformer, NativeUnavailable
from oracles.quantisation import STORED, rounds_inputs
from oracles.transformer.config import check_choice
from specdec.theory import check_count

# By name: help texts print the names without loading torch.
DTYPES: dict[str, torch.dtype] = {n: getattr(torch, n) for n in ("float64", "float32", "bfloat16", "float16")}

Backend = Literal["native", "eager", "graphed"]
WeightType = Literal["float32", "bfloat16", "float16", "int8", "int4", "int8-dynamic", "q4_0-int8"]
Arithmetic = Literal["float32", "int8"]


def checkpoint_place(device: torch.device | str | None) -> torch.device:
    """Return the device of that name; None: torch's default device.

    Raises:
        ValueError: torch knows no such device.
    """
    if device is None:
        return torch.get_default_device()
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is {str(device)!r}; give one as torch names them: 'cpu', 'cuda', 'cuda:1'") from error


def check_device(device: torch.device) -> None:
    """Raise ValueError if there is no such device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ValueError(
            f"device is {str(device)!r}, and this machine or this build of torch has none of that name: give 'cpu'"
        ) from error


def checkpoint_dtype(asked: torch.dtype | str | None) -> torch.dtype | None:
    """Return a dtype by its name.

    Raises:
        ValueError: an unknown one.
    """
    if asked is None:
        return None
    name = str(asked).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype is {asked!r}; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]


def dtype_to_load(asked: torch.dtype | None, stored: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype to load in: the one asked for, else float32 on the CPU and the stored one elsewhere."""
    return asked or (torch.float32 if device.type == "cpu" else stored)


def check_context(max_context: int | None) -> None:
    """Raise ValueError if ``max_context`` is neither a positive integer nor None, for the checkpoint's own."""
    if max_context is not None:
        check_count("max_context", max_context)


def check_weights(weights: str | None, dtype: torch.dtype | None, device: torch.device) -> None:
    """Refuse an unknown type of weights, or one that needs float32 on a CPU if dtype or device are others.

    Raises:
        ValueError: the message names the argument and what to give.
    """
    if weights is not None:
        check_choice("weights", weights, WeightType, ", or None for weights as they are stored")
    if weights is not None and rounds_inputs(weights):
        _need_float32(f"weights={weights!r}", "other weights", dtype, device)


def check_arithmetic(
    arithmetic: str | None, weights: str | None, dtype: torch.dtype | None, device: torch.device
) -> None:
    """Refuse an arithmetic of products that is unknown, or that contradicts another argument.

    Raises:
        ValueError: the message names the arguments and what to give.
    """
    if arithmetic is None:
        return
    check_choice("arithmetic", arithmetic, Arithmetic, ", or None for float products")
    if arithmetic == "int8":
        if weights is not None:
            raise ValueError(
                f"arithmetic='int8' takes weights as a GGUF file stores them ({', '.join(STORED)}), not "
                f"weights={weights!r}: leave one of them out"
            )
        _need_float32("arithmetic='int8'", "leave it out", dtype, device)
    elif weights is not None and rounds_inputs(weights):
        raise ValueError(f"weights={weights!r} has products of whole numbers, not arithmetic={arithmetic!r}")


def can_compute(weights: str, dtype: torch.dtype | str | None, device: torch.device | str | None) -> bool:
    """Return whether a model may have this type of weights in this dtype and on this device.

    Raises:
        ValueError: an unknown dtype or device.
    """
    return not rounds_inputs(weights) or _float32_obstacle(checkpoint_dtype(dtype), checkpoint_place(device)) is None


def _float32_obstacle(dtype: torch.dtype | None, device: torch.device) -> str | None:
    """Return why the arithmetic is not float32 on a CPU; None: it is."""
    if device.type != "cpu":
        return f"device is {str(device)!r}"
    return None if dtype in (None, torch.float32) else f"dtype is {str(dtype).removeprefix('torch.')!r}"


def _need_float32(what: str, otherwise: str, dtype: torch.dtype | None, device: torch.device) -> None:
    if (other := _float32_obstacle(dtype, device)) is not None:
        raise ValueError(
            f"{what} needs float32 arithmetic on a CPU, and {other}: give dtype='float32' and device='cpu', or "
            f"{otherwise}"
        )


def backend_of(backend: Backend | None, dtype: torch.dtype | None, device: torch.device, bitwise: bool) -> Backend:
    """Return the backend to use.

    Raises:
        ValueError: an unknown backend, "native" if it cannot run here, or "eager" if ``bitwise`` is asked for and it
            cannot hold it.
    """
    if backend is not None:
        check_choice("backend", backend, Backend, ", or None")
    if backend == "graphed":
        return backend
    other = _float32_obstacle(dtype, device)
    if backend == "eager":
        if bitwise and other is not None:
            raise ValueError(
                "bitwise is True, backend 'eager' keeps bits in float32 on a CPU only, and "
                f"{other}: give backend='graphed'"
            )
        return backend
    reason = _native_lacks() if other is None else f"it computes in float32 on a CPU, and {other}"
    if reason is None:
        return "native"
    if backend == "native":
        raise ValueError(f"backend 'native' cannot run: {reason}; choose 'eager', or None")
    if other is not None:
        return "graphed" if bitwise or device.type == "cuda" else "eager"
    _warn_once(reason)
    return "eager"


def _native_lacks() -> str | None:
    """Return why the compiled code cannot run on this machine; None: it can."""
    try:
        NativeTransformer.check()
    except NativeUnavailable as error:
        return str(error)
    return None


@cache
def _warn_once(reason: str) -> None:
    warnings.warn(f"passes run eagerly, several times slower: {reason}", NativeMissing, stacklevel=4)
