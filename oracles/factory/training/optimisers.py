"""Which optimiser trains which parameter."""

import torch
from torch import nn

from oracles.factory.training.recipes import Recipe

# Parts of the names of tables, whose rows are ids.
_TABLES = ("embed", "lm_head", "markov_w")


def build_optimisers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Return Muon for the hidden matrices and AdamW for embeddings, norms and biases, each at its peak rate.

    *Source*: Jordan et al. 2024 (Muon: kellerjordan.github.io/posts/muon); its scaling to AdamW's update size from
    Liu et al. 2025 (arXiv 2502.16982).
    """
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_hidden = parameter.ndim == 2 and not any(part in name for part in _TABLES)
        (matrices if is_hidden else others).append(parameter)
    muon = torch.optim.Muon(
        matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adamw]
