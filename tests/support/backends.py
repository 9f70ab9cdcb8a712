"""What a machine must have for tests of native code, and how a test does without."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from oracles.native import NativeTransformer, NativeUnavailable
from specdec import randomness
from specdec.contracts import Oracle
from specdec.drafting import certainty
from specdec.native import compiled_laws
from specdec.native import laws as native_laws
from specdec.warping import penalties, warping


def needed_native() -> None:
    """Skip the test, or the module that is being imported, with the reason where there is no native pass."""
    try:
        NativeTransformer.check()
    except NativeUnavailable as reason:
        pytest.skip(f"no native pass here: {reason}", allow_module_level=True)


def agree(model: Oracle, found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Tell whether scores of a float32 model are equal: bit for bit if it says so, else up to rounding."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if model.bitwise:
        return torch.equal(found, wanted)
    return bool((found - wanted).abs().max() <= 2e-5 * wanted.abs().max())


@contextmanager
def laws_by(backend: str) -> Iterator[None]:
    """Compute laws and draws by "torch" operations, or by "native" code; skip where there is none."""
    if backend == "native":
        if compiled_laws() is None:
            pytest.skip("no native laws here")
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for module in (warping, randomness, certainty, native_laws):
            patch.setattr(module, "compiled_laws", lambda: None)
        patch.setattr(penalties, "compiled_penalties", lambda: None)
        yield
