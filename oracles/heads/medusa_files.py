"""Medusa's heads on disk: the layout of the authors, and that of vLLM."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from oracles.checkpoints.config_keys import ConfigKeys
from oracles.checkpoints.hf_config import FIXED, INERT
from oracles.checkpoints.tensor_names import PLAIN, Layout, Place, first_rows
from oracles.checkpoints.weights import StoredTensors
from oracles.heads.head_tensors import HeadOptions, check_fit, fill_network
from oracles.heads.medusa_head import MedusaHead, MedusaNetwork, MedusaShape
from oracles.transformer.blocks import pack_parts
from specdec.contracts import HostOracle, LayeredOracle

_OF_VLLM = frozenset(("architectures", "base_model_name_or_path", "max_paths", "max_seq_len", "model_type", "topk"))
TOKEN_MAP, PREFIX = "token_map", "medusa_heads."


class MedusaHost(HostOracle, LayeredOracle, Protocol):
    """An oracle whose last norm a head may read through."""


def is_medusa(values: Mapping[str, Any]) -> bool:
    """Tell whether a ``config.json`` describes Medusa's heads in one of the known layouts."""
    return "medusa_num_heads" in values or values.get("model_type") == "medusa"


def load_medusa(folder: Path, values: Mapping[str, Any], oracle: MedusaHost, options: HeadOptions) -> MedusaHead:
    """Return the Medusa heads in a folder, bound to the oracle that they were trained for.

    Args:
        folder: holds ``config.json`` and safetensors.
        values: of its ``config.json``.
        oracle: the heads read its last layer's output, normed.
        options: with the backend "eager".

    Raises:
        ValueError: an oracle whose last norm is not available, a config that is unknown, contradictory, or of another
            oracle; a tensor that is missing, unexpected or misshapen. The message names the file.
    """
    keys, stored = ConfigKeys(values, str(folder / "config.json")), StoredTensors(folder)
    if any(".self_attn." in name for name in stored.shapes):
        raise ValueError(
            f"{keys.source} is of a whole model, with Medusa's heads in its files (Medusa-2): take heads by themselves"
        )
    if not oracle.num_layers:
        raise ValueError(f"{keys.source}: Medusa's heads read an oracle's last norm, and {oracle.backend!r} lends none")
    shape, rows, token_map = (
        _original(keys, oracle, stored) if "medusa_num_heads" in values else _vllm(keys, oracle, stored)
    )
    # Version 2 has no read-outs: it goes through its model's own.
    keys.close(INERT | _OF_VLLM, {**FIXED, "logit_scale": 1.0, "version": "1"})
    if shape.num_heads < 1 or shape.num_layers < 0 or shape.num_heads * max(shape.num_layers, 1) > len(stored.shapes):
        raise ValueError(
            f"{keys.source}: {shape.num_heads} heads of {shape.num_layers} residual blocks; the files hold "
            f"{len(stored.shapes)} tensors"
        )
    with torch.device("meta"):
        network = MedusaNetwork(shape)
    original = "medusa_num_heads" in values
    names = [name for name, _ in network.named_parameters()]
    places = {name: _place(name, shape, original, rows, token_map, stored) for name in names}
    fill_network(network, places, stored, oracle, options, ignored=(TOKEN_MAP, PREFIX + TOKEN_MAP))
    target_ids = None if token_map is None else token_map.to(oracle.device)
    return MedusaHead(shape, pack_parts(network), oracle, target_ids)


def _original(keys: ConfigKeys, oracle: HostOracle, stored: StoredTensors) -> tuple[MedusaShape, int, None]:
    """Return the shape, the rows of each head's table, and None: all ids are written.

    Heads are independent of each other. The authors' own files hold five although their configs say two: all are read.
    """
    heads, layers = keys.read("medusa_num_heads", int), keys.read("medusa_num_layers", int)
    if heads > 0:
        heads = max(heads, sum(f"{head}.{layers}.weight" in stored.shapes for head in range(len(stored.shapes))))
    table = f"0.{layers}.weight"
    rows, width = (*stored.shapes.get(table, (oracle.vocab_size, oracle.hidden_size)), 0, 0)[:2]
    check_fit(f"{stored.folder}: tensor {table!r}", oracle, width, rows)
    return MedusaShape(heads, layers, oracle.hidden_size, oracle.vocab_size), rows, None


def _vllm(keys: ConfigKeys, oracle: HostOracle, stored: StoredTensors) -> tuple[MedusaShape, int, Tensor | None]:
    """Return the shape, the rows of each head's table, and the ids that are written, or None for all."""
    width, vocab = keys.read("hidden_size", int), keys.read("vocab_size", int)
    check_fit(keys.source, oracle, width, vocab)
    written = keys.read("truncated_vocab_size", int, vocab)
    if written < 1:
        raise ValueError(f"{keys.source}: 'truncated_vocab_size' is {written}; a head writes at least one id")
    token_map = None if written >= vocab else _token_map(stored, written, oracle.vocab_size)
    shape = MedusaShape(
        num_heads=keys.read("num_heads", int),
        num_layers=keys.read("num_hidden_layers", int),
        hidden_size=width,
        columns=oracle.vocab_size if token_map is None else written,
        bias=keys.read("medusa_fc_bias", bool, False),
        shared_head=keys.read("original_lm_head", bool, False),
    )
    return shape, vocab, token_map


def _token_map(stored: StoredTensors, written: int, vocab_size: int) -> Tensor:
    """Return the ids ``[written]`` that a head's columns are for."""
    key = TOKEN_MAP if TOKEN_MAP in stored.shapes else PREFIX + TOKEN_MAP
    if key not in stored.shapes:
        raise ValueError(f"{stored.folder}: tensor {TOKEN_MAP!r} is missing; truncated_vocab_size {written} needs it")
    ids = stored.read(key)
    is_fine = ids.dtype in (torch.int32, torch.int64) and ids.shape == (written,)
    if not is_fine or len(set(ids.tolist())) < written or not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise ValueError(
            f"{stored.path(key)}: tensor {key!r} must hold {written} different ids of 0..{vocab_size - 1}, not "
            f"{ids.dtype} {tuple(ids.shape)}"
        )
    return ids.long()


def medusa_name(name: str, num_layers: int) -> str:
    """Return the authors' name of a parameter of a network with ``num_layers`` residual blocks in each head."""
    part, head, *rest = name.split(".")
    place = f"{rest[0]}.linear.{rest[1]}" if part == "blocks" else f"{num_layers}.{rest[0]}"
    return f"{head}.{place}"


def _place(
    name: str, shape: MedusaShape, original: bool, rows: int, token_map: Tensor | None, stored: StoredTensors
) -> Place:
    """Return where one of our parameters is stored."""
    part, *numbers, kind = name.split(".")
    if original:
        layout = PLAIN if part == "blocks" else first_rows(shape.columns, rows)
        return Place(medusa_name(name, shape.num_layers), layout)
    prefix = PREFIX if any(key.startswith(PREFIX) for key in stored.shapes) else ""
    if part == "blocks":
        return Place(f"{prefix}blocks.{numbers[0]}.layers.{numbers[1]}.{kind}", PLAIN)
    key = f"{prefix}lm_heads.{numbers[0]}.{kind}"
    if shape.shared_head and key not in stored.shapes:
        key = f"{prefix}lm_head.{kind}"
    if token_map is None:
        return Place(key, first_rows(shape.columns, rows))
    if stored.shapes.get(key, (0,))[0] == len(token_map):
        return Place(key, PLAIN)
    return Place(key, Layout(lambda given: (rows, *given[1:]), lambda table: table[token_map]))
