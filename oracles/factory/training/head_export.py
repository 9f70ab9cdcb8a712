"""EAGLE-3 heads before training: their config and initial weights; and the folder of a head that servers read."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oracles.factory.training.export import llama_config, save_folder
from oracles.heads import BlockNetwork, Eagle3Network
from oracles.heads.aux_layers import aux_layers_of, usual_inputs
from oracles.heads.eagle3_config import read_eagle3
from oracles.transformer.draft_vocabulary import OFFSETS, WRITTEN
from oracles.transformer.eager import Transformer


def describe_eagle3(
    oracle: Transformer, name: str, outputs: Sequence[int], intermediate_size: int, draft_vocab_size: int | None
) -> dict[str, Any]:
    """Return the ``config.json`` of a head in the format of ``speculators``.

    Args:
        oracle: the one that it drafts for; its attention has the same heads.
        name: of the oracle, as servers know it.
        outputs: the layers whose outputs it reads; the format numbers them as inputs of the next layers.
        intermediate_size: width of its MLP.
        draft_vocab_size: number of ids that it writes; None: all.

    Raises:
        ValueError: the oracle lacks a layer, or a loader would mistake these numbers for other layers.
    """
    rows, inputs = oracle.embedding_rows, [layer + 1 for layer in outputs]
    read = aux_layers_of(inputs, oracle.num_layers, "inputs", None, "the head's config")
    if read.outputs != tuple(outputs):
        raise ValueError(f"inputs of layers {inputs} are taken for outputs by those who load a head: read other layers")
    layer = replace(
        oracle.config, num_layers=1, intermediate_size=intermediate_size, norm="rms", activation="silu", gated=True,
        vocab_size=rows, padded_vocab_size=None, draft_vocab_size=None, tie_embeddings=False,
    )  # fmt: skip
    return {
        "architectures": ["Eagle3Speculator"],
        "model_type": "speculators",
        "speculators_model_type": "eagle3",
        "speculators_config": serving("eagle3", name, 4),
        "transformer_layer_config": llama_config(layer),
        "draft_vocab_size": rows if draft_vocab_size is None else draft_vocab_size,
        "target_hidden_size": oracle.hidden_size,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": inputs,
    }


def serving(kind: str, name: str, num_tokens: int) -> dict[str, Any]:
    """Return what ``speculators`` tells a server: the kind, the oracle's name, and how many tokens to draft."""
    return {
        "algorithm": kind,
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": num_tokens}],
        "verifier": {"name_or_path": name, "architectures": ["LlamaForCausalLM"]},
    }


def usual_outputs(num_layers: int) -> tuple[int, ...]:
    """Return the layers whose outputs a head reads by default: EAGLE-3's usual ones if they are three.

    For an oracle of fewer than seven layers these are its first, its middle and its last layer but one.
    """
    usual = tuple(layer - 1 for layer in usual_inputs(num_layers))
    return usual if num_layers >= 7 else tuple(sorted({0, max(0, num_layers // 2 - 1), max(0, num_layers - 2)}))


def new_eagle3(
    values: dict[str, Any], oracle: Transformer, target_ids: Tensor | None, own_head: bool, seed: int
) -> Eagle3Network:
    """Return a head in training form that at first reads out the highest of the oracle's layers that it reads.

    Args:
        values: its config, from ``describe_eagle3``.
        oracle: lends embeddings and, unless ``own_head``, the rows of its head.
        target_ids: ``[R]`` rising, the ids that it writes; None: all ids.
        own_head: it has rows of its own, which begin as the oracle's.
        seed: of the weights that are not taken from the oracle.

    Raises:
        ValueError: the oracle lacks a layer.
    """
    shape = read_eagle3(values, "the head's config", oracle, None)
    network = Eagle3Network(shape, False, own_head, target_ids)
    begin_weights(network, oracle, target_ids, seed)
    return network.to(oracle.device)


@torch.no_grad()
def begin_weights(
    network: Eagle3Network | BlockNetwork, oracle: Transformer, target_ids: Tensor | None, seed: int
) -> None:
    """Make a head pass on the highest layer that it reads, and begin with the oracle's last norm and, if own, head.

    Args:
        network: in training form; its weights are replaced.
        oracle: the one that it drafts for.
        target_ids: ``[R]`` rising, the ids that it writes; None: all ids.
        seed: of the weights that are not taken from the oracle.

    Raises:
        ValueError: see ``head_rows``.
    """
    _draw_weights(network, seed)
    assert network.fc.weight is not None
    network.fc.weight[:, -oracle.hidden_size :] += torch.eye(oracle.hidden_size)
    network.norm.weight.copy_(oracle.model.norm.weight)
    if network.lm_head is not None and network.lm_head.weight is not None:
        network.lm_head.weight.copy_(head_rows(oracle, target_ids))


def _draw_weights(network: nn.Module, seed: int) -> None:
    """Fill all weights except norms at random, in place; those that write to a residual stream are smaller."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        if "norm" not in name:
            into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
            parameter.normal_(0.0, 0.02 / math.sqrt(2) if into_stream else 0.02, generator=generator)


def head_rows(oracle: Transformer, target_ids: Tensor | None) -> Tensor:
    """Return the rows ``[R, D]`` of the oracle's head for some ids, or for all including padding.

    Raises:
        ValueError: they are not plain numbers, or have a bias.
    """
    head = oracle.lm_head
    rows = oracle.model.embed_tokens.weight if head is None else head.weight
    if rows is None or (head is not None and head.bias is not None):
        raise ValueError("the oracle's head has a bias, or no plain weights: heads are trained on plain checkpoints")
    rows = rows.detach()
    return rows if target_ids is None else rows[target_ids.to(rows.device)]


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
