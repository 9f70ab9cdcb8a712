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
from oracles.transformer import bits, eager
from specdec.contracts import Oracle
from specdec.kernels import NativeKernels, native


def needed_native() -> None:
    """Skip the test, or the module that is being imported, with the reason where there is no native pass."""
    try:
        NativeTransformer.check()
    except NativeUnavailable as reason:
        pytest.skip(f"no native pass here: {reason}", allow_module_level=True)


def pack_eagerly(model: Transformer) -> Transformer:
    return model.pack()


def _digest(*tensors: torch.Tensor) -> bytes:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
    return found.digest()


def _weights_of(model: Transformer) -> Any:
    """Return what tells a model from those of other weights; None: it has no bits to check, or a part of them."""
    if type(model) is not Transformer or model.dtype != torch.float32 or model.device.type != "cpu":
        return None
    stored = [part.quantised for part in model.modules() if getattr(part, "quantised", None) is not None]
    numbers = [number for one in stored for number in vars(one).values() if isinstance(number, torch.Tensor)]
    plain = tuple((name, part.dtype, _digest(part)) for name, part in model.named_parameters())
    return str(model.config), plain, tuple(one.format for one in stored), _digest(*numbers)


@contextmanager
def bits_checked_once() -> Iterator[None]:
    """Have the check of a model's bits made until it holds for one of equal weights on the same backend and library."""
    pack, check, sound = Transformer.pack, bits.has_bitwise_scores, set[Any]()
    packing: list[Any] = []  # weights, which a packed model no longer shows

    def packed(model: Transformer) -> Transformer:
        packing.append(_weights_of(model))
        try:
            return pack(model)
        finally:
            packing.pop()

    def is_sound(model: Oracle, key: Any) -> bool:
        if key is None or key not in sound:
            if not check(model):
                return False
            sound.add(key)
        return True

    def is_sound_natively(model: NativeTransformer) -> bool:
        weights = _digest(*model.native.weights.tensors)
        return is_sound(model, (bindings.functions(), str(model.config), model.weight_type, weights))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transformer, "pack", packed)
        patch.setattr(eager, "has_bitwise_scores", lambda model: is_sound(model, packing[-1]))
        patch.setattr(native_transformer, "has_bitwise_scores", is_sound_natively)
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
        return native.native_kernels()
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

    def native_kernels() -> NativeKernels:
        if isinstance(made, NativeUnavailable):
            raise made
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "native_kernels", native_kernels)
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
