"""Checkpoints for evaluation: in training form, with the columns that describe them in a table."""

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from oracles.checkpoints.loading import checkpoint_folder, load_tokenizer, load_trainable
from oracles.heads import ExitHead
from oracles.transformer.eager import Transformer


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in training form.

    Attributes:
        name: as it was asked for.
        model: in float32.
        tokenizer: its own.
        num_bytes: of its weights on disk.
    """

    name: str
    model: Transformer
    tokenizer: Tokenizer
    num_bytes: int

    @classmethod
    def read(cls, name_or_path: str, device: torch.device | str = "cpu") -> "Checkpoint":
        """Return the embedded checkpoint of this name, or the one in this directory; ValueError if there is none."""
        files = checkpoint_folder(name_or_path).glob("*.safetensors")
        model, tokenizer = load_trainable(name_or_path, "float32", device), load_tokenizer(name_or_path)
        return cls(name_or_path, model, tokenizer, sum(path.stat().st_size for path in files))

    def columns(self) -> dict[str, str]:
        """Return name, number of parameters and size, for a row of a table."""
        count = sum(parameter.numel() for parameter in self.model.parameters())
        return {"model": f"`{self.name}`", "parameters": f"{count:,}", "MB on disk": f"{self.num_bytes / 1e6:.1f}"}


def head_logits(head: ExitHead, oracle: Transformer, ids: Tensor) -> Tensor:
    """Return an exit head's logits ``[B, T, V]`` after every prefix of ids ``[B, T]``; the oracle is as it trains."""
    stream = oracle.streams(ids)[head.num_layers - 1]
    return head(stream.flatten(0, 1)).view(*ids.shape, -1)
