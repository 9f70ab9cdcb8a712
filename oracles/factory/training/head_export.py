"""What heads of several kinds share before and after training: first weights, and a folder that servers read."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oracles.factory.training.export import save_folder
from oracles.factory.training.lesson import Lesson, head_rows
from oracles.heads import BlockNetwork, Eagle3Network
from oracles.transformer.draft_vocabulary import OFFSETS, WRITTEN


def serving(kind: str, name: str, num_tokens: int) -> dict[str, Any]:
    """Return what ``speculators`` tells a server: the kind, the oracle's name, and how many tokens to draft."""
    return {
        "algorithm": kind,
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": num_tokens}],
        "verifier": {"name_or_path": name, "architectures": ["LlamaForCausalLM"]},
    }


@torch.no_grad()
def begin_weights(network: Eagle3Network | BlockNetwork, lesson: Lesson, seed: int) -> None:
    """Make a head pass on the highest layer that it reads, and begin with the oracle's last norm and, if own, head.

    Args:
        network: in training form; its weights are replaced.
        lesson: what it learns from.
        seed: of the weights that are not taken from the oracle.

    Raises:
        ValueError: see ``head_rows``.
    """
    oracle = lesson.oracle
    _draw_weights(network, seed)
    assert network.fc.weight is not None
    network.fc.weight[:, -oracle.hidden_size :] += torch.eye(oracle.hidden_size)
    network.norm.weight.copy_(oracle.model.norm.weight)
    if network.lm_head is not None and network.lm_head.weight is not None:
        network.lm_head.weight.copy_(head_rows(oracle, lesson.target_ids))


def _draw_weights(network: nn.Module, seed: int) -> None:
    """Fill all weights except norms at random, in place; those that write to a residual stream are smaller."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        if "norm" not in name:
            into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
            parameter.normal_(0.0, 0.02 / math.sqrt(2) if into_stream else 0.02, generator=generator)


def eagle3_name(name: str) -> str:
    """Return the ``speculators`` name of a network's parameter; an EAGLE-3 network's layer has no number in ours."""
    return f"layers.0.{name.removeprefix('layer.')}" if name.startswith("layer.") else name


def export_head(
    network: Eagle3Network | BlockNetwork, values: dict[str, Any], folder: Path, target_ids: Tensor | None
) -> None:
    """Write a head: ``config.json``, and bfloat16 tensors in the names of ``speculators``.

    Args:
        network: tables that it lacks are not written: they are the oracle's.
        values: from ``describe_eagle3`` or ``describe_dspark``.
        folder: created if absent; old weights in it are removed.
        target_ids: ``[R]`` the ids that it writes, by rows of its own or the oracle's; None: all ids.
    """
    tensors = {eagle3_name(name): parameter.detach() for name, parameter in network.named_parameters()}
    if target_ids is not None:
        tensors |= _written_ids(target_ids, values["transformer_layer_config"]["vocab_size"])
    save_folder(tensors, values, folder)


def _written_ids(target_ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """Return the tensors that say which ids ``[R]`` a head writes: their offsets, and a mask of all ids."""
    ids = target_ids.cpu()
    mask = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    return {OFFSETS: ids - torch.arange(len(ids)), WRITTEN: mask}
