"""The models of one shape: the same weights for every program, made when first asked for."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from experiments.bench.oracle.llama_cpp_arm import MAX_BATCH, LlamaCpp
from experiments.peers.gguf_file import temporary_gguf
from experiments.peers.with_llama_cpp import missing
from experiments.peers.with_transformers import llama_of
from oracles.checkpoints.placement import DTYPES
from oracles.native import NativeTransformer
from oracles.transformer.config import TransformerConfig
from oracles.transformer.eager import Transformer

# vocabulary, width, layers, heads, width of the MLP, context
SHAPES = {
    "10m": TransformerConfig(3072, 384, 6, 6, 1024, 2304),
    "110m": TransformerConfig(32000, 768, 12, 12, 2048, 2304),
    "tiny": TransformerConfig(256, 32, 2, 2, 64, 2304),
}
STORAGES = ("bfloat16", "float32")
Made = TypeVar("Made")
# Initial weights make texts that repeat two ids; blocks so much stronger make texts that depend on what was written.
_STRENGTH = 4.0


class Models:
    """One shape's models: the same random weights, each of which bfloat16 holds exactly.

    Args:
        shape: a key of ``SHAPES``.
        vocab_size: in place of the shape's own.
        capacity: tokens that llama.cpp's sequence holds.
    """

    def __init__(self, shape: str, vocab_size: int | None, capacity: int) -> None:
        config = SHAPES[shape]
        self.config = config if vocab_size is None else replace(config, vocab_size=vocab_size)
        self._capacity = capacity
        self._made: dict[tuple[str, str], Any] = {}

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """The weights in bfloat16, linear ones ``[out, in]``, under the names of Hugging Face's Llama."""
        plain = Transformer(self.config).state_dict()
        blocks = {name for name in plain if name.startswith("model.layers.") and name.endswith("proj.weight")}
        return {name: (w * (_STRENGTH if name in blocks else 1)).bfloat16() for name, w in plain.items()}

    def native(self, storage: str) -> NativeTransformer:
        """Return the native model whose weights are stored as asked."""
        return self._once("native", storage, lambda: native_of(self.config, self.state, storage))

    @property
    def eager(self) -> Transformer:
        """The reference: torch operations, float32."""
        return self._once("eager", "float32", lambda: with_weights(self.config, self.state, "float32").pack())

    def peer(self, storage: str) -> Any:
        """Return ``transformers``' model, weights and arithmetic in a dtype."""
        return self._once("transformers", storage, lambda: llama_of(self.config, self.state, DTYPES[storage]))

    def llama_cpp(self, storage: str) -> LlamaCpp:
        """Return llama.cpp's model, with torch's present number of threads."""
        model = self._once("llama.cpp", storage, lambda: self._load(storage))
        model.set_threads(torch.get_num_threads())
        return model

    def _load(self, storage: str) -> LlamaCpp:
        with temporary_gguf(self.config, self.state, storage) as path:
            return LlamaCpp(path, self.config.vocab_size, storage, self._capacity + MAX_BATCH)

    @property
    def llama_storages(self) -> tuple[str, ...]:
        """Storages that llama.cpp can be measured with: none if it is not installed."""
        return () if missing() else STORAGES

    def _once(self, program: str, storage: str, make: Callable[[], Made]) -> Made:
        if (program, storage) not in self._made:
            self._made[program, storage] = make()
        found: Made = self._made[program, storage]
        return found

    def close(self) -> None:
        """Free what Python does not."""
        for (program, _), model in self._made.items():
            if program == "llama.cpp":
                model.close()
        self._made.clear()


def with_weights(config: TransformerConfig, state: Mapping[str, Tensor], storage: str) -> Transformer:
    """Return a transformer of some weights, as it trains.

    Args:
        config: its shape.
        state: its parameters, linear ones ``[out, in]``.
        storage: names the dtype.
    """
    model = Transformer(config, seed=None).to(DTYPES[storage])
    model.load_state_dict(dict(state))
    return model.eval()


def native_of(config: TransformerConfig, state: Mapping[str, Tensor], storage: str) -> NativeTransformer:
    """Return the native model of some weights, stored as asked; for arguments see ``with_weights``.

    Raises:
        AssertionError: its bits depend on the pass, so that its times are those of another program.
    """
    model = NativeTransformer(with_weights(config, state, storage))
    if not model.bitwise:
        raise AssertionError(f"native, {storage}: scores depend on the pass that they come from: no time counts")
    return model
