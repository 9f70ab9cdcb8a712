"""Held-out bits per byte of an exported checkpoint."""

import json
import math
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from oracles.hf_config import parse_config
from oracles.tokenization import end_of_text_id
from oracles.transformer import Transformer

MAX_WINDOW = 1024


def load_exported(folder: Path, vocab_size: int) -> Transformer:
    """Return the float32 training form of a checkpoint that ``export_llama`` wrote.

    Args:
        folder: the checkpoint's directory.
        vocab_size: of the tokenizer in use.

    Raises:
        ValueError: where the checkpoint has another vocabulary.
    """
    path = folder / "config.json"
    config = parse_config(json.loads(path.read_text(encoding="utf-8")), str(path)).config
    if config.vocab_size != vocab_size:
        raise ValueError(f"{folder} has {config.vocab_size} ids, not {vocab_size}; give one with the same tokenizer")
    model = Transformer(config, seed=None)
    tensors: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(shard)
    model.load_state_dict(tensors)
    return model.float().eval()


@torch.no_grad()
def _nats(model: Transformer, ids: Tensor, length: int) -> float:
    """Return the summed loss of ``ids[1:]``, each scored with at least ``length / 2`` tokens before it, or all."""
    total, stride = 0.0, length // 2
    for start in range(0, max(1, len(ids) - 1 - stride), stride):
        window = ids[start : start + length + 1]
        log_probs = model(window[None, :-1])[0].log_softmax(-1)
        losses = -log_probs.gather(1, window[1:, None]).squeeze(1)
        total += losses[stride if start else 0 :].double().sum().item()
    return total


def bits_per_byte(model: Transformer, tokenizer: Tokenizer, texts: Iterable[str]) -> float:
    """Return the bits that the model spends on a byte of the texts.

    Every text follows an end-of-text token; its own end is not counted.

    Args:
        model: in float32.
        tokenizer: the model's.
        texts: whole files, read in windows of up to ``MAX_WINDOW`` positions that overlap by half.
    """
    length = min(MAX_WINDOW, model.config.max_context)
    nats, num_bytes = 0.0, 0
    end = end_of_text_id(tokenizer)
    device = next(model.parameters()).device
    for text in texts:
        ids = torch.tensor([end, *tokenizer.encode(text).ids], device=device)
        nats += _nats(model, ids, length)
        num_bytes += len(text.encode())
    return nats / math.log(2) / num_bytes
