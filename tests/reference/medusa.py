"""Medusa's heads in plain float64, one head and one residual block at a time, from weights by name."""

import torch
from torch import Tensor


def head_logits(weights: dict[str, Tensor], head: int, num_layers: int, state: Tensor) -> Tensor:
    """Return the logits of a head of the original layout, from the normed stream ``[H]``; heads count from 0.

    Head 0 is for the token after the one that the model's own head predicts.
    """
    x = state.double()
    for layer in range(num_layers):
        inner = weights[f"{head}.{layer}.linear.weight"].double() @ x
        x = x + torch.nn.functional.silu(inner + weights[f"{head}.{layer}.linear.bias"].double())
    return weights[f"{head}.{num_layers}.weight"].double() @ x


def vllm_head_logits(weights: dict[str, Tensor], head: int, num_layers: int, state: Tensor, vocab_size: int) -> Tensor:
    """Return the same of vLLM's layout; ids that ``token_map`` does not name get minus infinity."""
    x = state.double()
    for layer in range(num_layers):
        inner = weights[f"blocks.{head}.layers.{layer}.weight"].double() @ x
        if f"blocks.{head}.layers.{layer}.bias" in weights:
            inner = inner + weights[f"blocks.{head}.layers.{layer}.bias"].double()
        x = x + torch.nn.functional.silu(inner)
    read = weights[f"lm_heads.{head}.weight" if f"lm_heads.{head}.weight" in weights else "lm_heads.0.weight"].double()
    ids = weights.get("token_map", torch.arange(vocab_size))
    out = torch.full((vocab_size,), -torch.inf, dtype=torch.float64)
    out[ids] = (read if len(read) == len(ids) else read[ids]) @ x
    return out
