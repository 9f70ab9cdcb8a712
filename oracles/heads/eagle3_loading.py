"""EAGLE-3 heads off the disk, each tensor once and nothing left over."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oracles.checkpoints.placement import WeightType
from oracles.checkpoints.tensor_names import PLAIN, Place
from oracles.checkpoints.weights import StoredTensors, fill
from oracles.heads.aux_layers import Convention
from oracles.heads.eagle3 import Eagle3Head
from oracles.heads.eagle3_config import Eagle3Shape, read_eagle3
from oracles.heads.eagle3_network import Eagle3Network
from oracles.heads.head_tensors import READ_OUT, HeadBackend, borrow_rows
from oracles.heads.native_eagle3 import NativeEagle3Head
from oracles.heads.rounding import narrow
from oracles.native import NativeTransformer
from oracles.transformer.draft_vocabulary import OFFSETS, WRITTEN, DraftHead, check_mask, take_written_ids
from specdec.contracts import HostOracle

LoadedEagle3 = Eagle3Head | NativeEagle3Head
EMBEDDINGS = "embed_tokens.weight"
# What the one layer is called: by EAGLE's authors, and by others.
_LAYER_NAMES = ("midlayer", "layers.0")


def load_eagle3(
    folder: Path,
    values: Mapping[str, Any],
    oracle: HostOracle,
    aux_layers: Convention | None,
    backend: HeadBackend,
    weights: WeightType | None,
) -> LoadedEagle3:
    """Return the head in a folder.

    Args:
        folder: with ``*.safetensors``.
        values: its parsed ``config.json``.
        oracle, aux_layers, weights: see ``load_head``.
        backend: which can run.

    Raises:
        ValueError: see ``load_head``.
    """
    shape = read_eagle3(values, str(folder / "config.json"), oracle, aux_layers)
    stored = StoredTensors(folder)
    target_ids = _take_target_ids(stored, shape)
    own = {name: name in stored.shapes for name in (EMBEDDINGS, READ_OUT)}
    _check_borrowed(own, shape, oracle, stored)
    borrows_rows = False
    if not own[READ_OUT] and target_ids is not None:
        borrow_rows(stored, target_ids, oracle)
        borrows_rows = own[READ_OUT] = True
    with torch.device("meta"):
        network = Eagle3Network(shape, own[EMBEDDINGS], own[READ_OUT], target_ids)
    as_stored = backend == "native" or weights is not None
    fill(network, _places(network, stored), stored, None if as_stored else oracle.dtype, oracle.device)
    if isinstance(network.lm_head, DraftHead) and target_ids is not None:
        network.lm_head.target_ids = target_ids.to(oracle.device)
    name = "speculators eagle3" if "speculators_model_type" in values else "EAGLE-3"
    if weights is not None:
        network.store(weights)
    elif borrows_rows and network.lm_head is not None and isinstance(oracle, NativeTransformer):
        narrow(network.lm_head, READ_OUT, oracle.weight_type)
    if backend == "native" and isinstance(oracle, NativeTransformer):
        return NativeEagle3Head(network, shape, oracle, name)
    return Eagle3Head(network.dequantise().to(oracle.dtype), shape, oracle, name)


def _take_target_ids(stored: StoredTensors, shape: Eagle3Shape) -> Tensor | None:
    """Return the ids ``[R]`` that the head writes, out of its offsets; None: all, and no offsets are stored."""
    config, of_ids = shape.config, None
    if WRITTEN in stored.shapes:
        path, of_ids = stored.path(WRITTEN), stored.take(WRITTEN)
    writes_all = config.draft_vocab_size in (None, config.vocab_size)
    if writes_all and OFFSETS not in stored.shapes:
        return None
    ids = take_written_ids(stored, config)
    if ids is None:
        raise ValueError(f"{stored.path(OFFSETS)}: tensor {OFFSETS!r} needs a 'draft_vocab_size' in config.json")
    if of_ids is not None:
        check_mask(of_ids, ids, config.vocab_size, path)
    return ids


def _check_borrowed(own: Mapping[str, bool], shape: Eagle3Shape, oracle: HostOracle, stored: StoredTensors) -> None:
    """Refuse a head that must borrow what does not fit it."""
    config = shape.config
    if not all(own.values()) and config.hidden_size != oracle.hidden_size:
        absent = next(name for name, there in own.items() if not there)
        raise ValueError(
            f"{stored.folder}: tensor {absent!r} is missing in its safetensors, and the oracle's is "
            f"{oracle.hidden_size} wide where the head is {config.hidden_size}"
        )


def _places(network: Eagle3Network, stored: StoredTensors) -> dict[str, Place]:
    """Return where each parameter is stored, after checking that file and network agree.

    Raises:
        ValueError: a tensor is missing, unexpected or of a wrong shape or dtype; it names the file and the tensor.
    """
    named = (name for name in _LAYER_NAMES if any(key.startswith(f"{name}.") for key in stored.shapes))
    layer = next(named, _LAYER_NAMES[0])
    found = {}
    for name, parameter in network.named_parameters():
        key = f"{layer}.{name.removeprefix('layer.')}" if name.startswith("layer.") else name
        other = key.replace("fc_norm.", "fcs.")
        key = other if key not in stored.shapes and other in stored.shapes else key
        if key not in stored.shapes:
            raise ValueError(f"{stored.folder}: tensor {key!r} is missing in its safetensors")
        if stored.shapes[key] != tuple(parameter.shape):
            raise ValueError(
                f"{stored.path(key)}: tensor {key!r} has shape {stored.shapes[key]}, config.json and oracle imply "
                f"{tuple(parameter.shape)}"
            )
        stored.dtype(key)
        found[name] = Place(key, PLAIN)
    for key in sorted(stored.shapes.keys() - {place.key for place in found.values()}):
        raise ValueError(f"{stored.path(key)}: tensor {key!r} is unexpected: config.json does not speak of it")
    return found
