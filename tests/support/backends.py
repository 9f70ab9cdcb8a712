"""What a machine must have for tests of native code, and how a test does without."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from oracles import Transformer
from oracles.graphed import GraphedTransformer
from oracles.native import NativeTransformer, NativeUnavailable, bindings, native_transformer
from oracles.transformer import eager
from specdec.contracts import Oracle
from specdec.kernels import NativeKernels, native, native_kernels


def needed_native() -> None:
    """Skip the test, or the module that is being imported, with the reason where there is no native pass."""
    try:
        NativeTransformer.check()
    except NativeUnavailable as reason:
        pytest.skip(f"no native pass here: {reason}", allow_module_level=True)


_BITWISE: set[str] = set()


def pack_eagerly(model: Transformer) -> Transformer:
    """Pack a model; the check of its bits, most of the work, is made until it holds for one with equal weights."""
    if model.weight_type != "float32":  # quantised, or of a type that promises no bits
        return model.pack()
    weights = b"".join(part.detach().numpy().tobytes() for part in model.parameters())
    key = f"{model.config} {hashlib.sha256(weights).hexdigest()}"
    with pytest.MonkeyPatch.context() as patch:
        if key in _BITWISE:
            patch.setattr(eager, "scores_are_bitwise", lambda _: True)
        model.pack()
    if model.bitwise:
        _BITWISE.add(key)
    return model


@contextmanager
def native_bits_checked_once() -> Iterator[None]:
    """Have the check of a native model's bits made until it holds for one of equal weights on the same library."""
    check, sound = native_transformer.scores_are_bitwise, set[tuple[Any, ...]]()

    def is_sound(model: NativeTransformer) -> bool:
        weights = hashlib.sha256()
        for tensor in model.native.weights.tensors:
            weights.update(tensor.contiguous().view(torch.uint8).numpy())
        key = bindings.functions(), str(model.config), model.weight_type, weights.digest()
        if key not in sound and check(model):
            sound.add(key)
        return key in sound

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_transformer, "scores_are_bitwise", is_sound)
        yield


def _pack_natively(model: Transformer) -> NativeTransformer:
    needed_native()
    return NativeTransformer(model)


# How a transformer is prepared for inference on a backend; those whose scores are bitwise.
BITWISE_PACKS: dict[str, Callable[[Transformer], Any]] = {"eager": pack_eagerly, "native": _pack_natively}
PACKS = BITWISE_PACKS | {"graphed": lambda model: GraphedTransformer(pack_eagerly(model))}


def needed_kernels() -> NativeKernels:
    """Return the compiled kernels; skip the test, or the module that is being imported, where there are none."""
    try:
        return native_kernels()
    except NativeUnavailable as reason:
        pytest.skip(f"no native kernels here: {reason}", allow_module_level=True)


def agree(model: Oracle, found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Tell whether scores of a float32 model are equal: bit for bit if it says so, else up to rounding."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if model.bitwise:
        return torch.equal(found, wanted)
    return bool((found - wanted).abs().max() <= 2e-5 * wanted.abs().max())


@contextmanager
def kernels_are(made: NativeKernels | NativeUnavailable) -> Iterator[None]:
    """Have the best kernels be these, or none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_make_once", lambda: made)
        patch.setattr(native, "warn_once", lambda text: None)
        yield


@contextmanager
def laws_by(backend: str) -> Iterator[None]:
    """Compute laws and draws by "torch" operations, or by "native" code; skip where there is none."""
    if backend == "native":
        needed_kernels()
        yield
    else:
        with kernels_are(NativeUnavailable("a test does without")):
            yield


@contextmanager
def judged_by_rules() -> Iterator[None]:
    """Have rules judge, by native laws and draws."""
    needed_kernels()
    kernels = NativeKernels()
    kernels.walks = None
    with kernels_are(kernels):
        yield
