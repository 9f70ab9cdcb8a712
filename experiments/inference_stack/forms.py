"""One model in the forms that the arms need: the same weights, each form made when first asked for."""

from functools import cached_property
from typing import Any, Protocol

import torch

import oracles
from experiments.bench.oracle.benchmark_models import Models, native_of, peer_of, with_weights
from oracles.checkpoints.loading import checkpoint_folder
from oracles.huggingface.huggingface_loading import auto_models
from oracles.native import NativeTransformer
from oracles.transformer.eager import Transformer


class Forms(Protocol):
    """The forms of a model.

    Attributes:
        plain: as it trains, in float32: torch's own linear layers.
        half: the same in bfloat16.
        eager: the eager oracle in float32: on a CPU its layers are laid out for few rows.
        native: the native oracle, weights in bfloat16; on a CPU only.
        peer: ``transformers``' model, in float32.
    """

    @property
    def plain(self) -> Transformer: ...
    @property
    def half(self) -> Transformer: ...
    @property
    def eager(self) -> Transformer: ...
    @property
    def native(self) -> NativeTransformer: ...
    @property
    def peer(self) -> Any: ...


def traceable(model: Transformer) -> Transformer:
    """Return a model for inference after computing what a compiler cannot trace: the angles of its positions."""
    model.model.rotary.rows(torch.zeros(1, dtype=torch.int64, device=model.device), model.max_context, model.dtype)
    return model.eval().requires_grad_(False)


class EmbeddedForms:
    """The forms of an embedded checkpoint."""

    def __init__(self, name: str, device: torch.device) -> None:
        self._name, self._device = name, device

    @cached_property
    def plain(self) -> Transformer:
        """Float32, as it trains."""
        return traceable(oracles.load_trainable(self._name, "float32", self._device))

    @cached_property
    def half(self) -> Transformer:
        """Bfloat16, as it trains."""
        return traceable(oracles.load_trainable(self._name, "bfloat16", self._device))

    @cached_property
    def eager(self) -> Transformer:
        """The eager oracle."""
        return oracles.load(self._name, "float32", self._device, backend="eager")

    @cached_property
    def native(self) -> NativeTransformer:
        """The native oracle."""
        return oracles.load(self._name, backend="native")

    @cached_property
    def peer(self) -> Any:
        """``transformers``' model, without settings of its own."""
        model: Any = auto_models().from_pretrained(checkpoint_folder(self._name), dtype=torch.float32)
        model.generation_config = type(model.generation_config)()
        return model.to(self._device).eval()


class RandomForms:
    """The forms of a shape with random weights, which bfloat16 holds exactly."""

    def __init__(self, models: Models, device: torch.device) -> None:
        self._models, self._device = models, device

    def _trainable(self, storage: str) -> Transformer:
        return traceable(with_weights(self._models.config, self._models.state, storage).to(self._device))

    @cached_property
    def plain(self) -> Transformer:
        """Float32, as it trains."""
        return self._trainable("float32")

    @cached_property
    def half(self) -> Transformer:
        """Bfloat16, as it trains."""
        return self._trainable("bfloat16")

    @cached_property
    def eager(self) -> Transformer:
        """The eager oracle."""
        return self._trainable("float32").pack()

    @cached_property
    def native(self) -> NativeTransformer:
        """The native oracle."""
        return native_of(self._models.config, self._models.state, "bfloat16")

    @cached_property
    def peer(self) -> Any:
        """``transformers``' model."""
        return peer_of(self._models.config, self._models.state, "float32").to(self._device)
