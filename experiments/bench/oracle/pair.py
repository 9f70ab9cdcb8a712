"""The embedded pair, and what ``transformers`` makes of the same files."""

from functools import cached_property
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

import oracles
from experiments.bench.oracle.benchmark_models import first_layers, native_of, peer_of
from experiments.harness.arguments import PROMPTS
from oracles.checkpoints.loading import checkpoint_folder
from oracles.native import NativeTransformer
from specdec.prompts import load_prompts

TARGET, DRAFT, FIRST_LAYER = "code", "code-draft", "one layer of six"
DRAFTS = (FIRST_LAYER, DRAFT)


class Pair:
    """A target, its drafts and prompts; all is loaded when first asked for.

    Args:
        num_prompts: of the shipped ones.
        longest: tokens that are kept of a prompt.
    """

    def __init__(self, num_prompts: int, longest: int) -> None:
        self._num_prompts, self._longest = num_prompts, longest
        self._peers: dict[tuple[str, str], Any] = {}

    @cached_property
    def target(self) -> NativeTransformer:
        """The target, as stored: bfloat16."""
        return oracles.load(TARGET, backend="native")

    @cached_property
    def drafts(self) -> dict[str, NativeTransformer]:
        """Name -> draft model."""
        config, state = first_layers(self.target.config, _read_weights(TARGET), 1)
        first = native_of(config, state, "bfloat16")
        first.tokenizer = self.target.tokenizer
        return {FIRST_LAYER: first, DRAFT: oracles.load(DRAFT, backend="native")}

    def peer(self, name: str, storage: str) -> Any:
        """Return ``transformers``' model of the target or of a draft, in a dtype."""
        if (name, storage) not in self._peers:
            config = (self.target if name == TARGET else self.drafts[name]).config
            _, state = first_layers(config, _read_weights(DRAFT if name == DRAFT else TARGET), config.num_layers)
            self._peers[name, storage] = peer_of(config, state, storage)
        return self._peers[name, storage]

    @cached_property
    def prompts(self) -> list[list[int]]:
        """Ids of the prompts."""
        texts = [prompt.text for prompt in load_prompts(str(PROMPTS), None, self._num_prompts)]
        tokenizer = self.target.tokenizer
        assert tokenizer is not None
        return [tokenizer.encode(text).ids[-self._longest :] for text in texts]

    def close(self) -> None:
        """Free the models."""
        self._peers.clear()


def _read_weights(name: str) -> dict[str, Tensor]:
    """Return a checkpoint's weights as they are stored."""
    files = sorted(checkpoint_folder(name).glob("*.safetensors"))
    return {key: weight for file in files for key, weight in load_file(file).items()}
