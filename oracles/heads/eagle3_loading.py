"""Load EAGLE-3 heads from disk: each tensor once, with none left over."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oracles.checkpoints.tensor_names import PLAIN, Place
from oracles.checkpoints.weights import StoredTensors
from oracles.graphed import GraphedTransformer
from oracles.heads.eagle3_config import Eagle3Shape, read_eagle3
from oracles.heads.eagle3_head import Eagle3Head
from oracles.heads.eagle3_network import Eagle3Network
from oracles.heads.graphed_eagle3 import GraphedEagle3Head
from oracles.heads.head_tensors import READ_OUT, HeadOptions, borrow_rows, fill_network
from oracles.heads.native_eagle3 import NativeEagle3Head
from oracles.native import NativeTransformer
from oracles.transformer.draft_vocabulary import OFFSETS, WRITTEN, DraftHead, check_mask, read_written_ids
from specdec.contracts import HostOracle

LoadedEagle3 = Eagle3Head | GraphedEagle3Head | NativeEagle3Head
EMBEDDINGS = "embed_tokens.weight"
# The name of the one layer: with EAGLE's authors, and with others.
_LAYER_NAMES = ("midlayer", "layers.0")


def load_eagle3(folder: Path, values: Mapping[str, Any], oracle: HostOracle, options: HeadOptions) -> LoadedEagle3:
    """Return the head in a folder.

    Args:
        folder: with ``*.safetensors``.
        values: its parsed ``config.json``.
        oracle: see ``load_head``.
        options: the other arguments of ``load_head``.

    Raises:
        ValueError: see ``load_head``.
    """
    backend = options.backend_for(oracle)
    shape = read_eagle3(values, str(folder / "config.json"), oracle, options.aux_layers)
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
    borrowed = network.lm_head if borrows_rows else None
    fill_network(network, _places(network, stored), stored, oracle, options, [network], borrowed)
    if isinstance(network.lm_head, DraftHead) and target_ids is not None:
        network.lm_head.target_ids = target_ids.to(oracle.device)
    name = "speculators eagle3" if "speculators_model_type" in values else "EAGLE-3"
    if backend == "native" and isinstance(oracle, NativeTransformer):
        return NativeEagle3Head(network, shape, oracle, name)
    if backend == "graphed" and isinstance(oracle, GraphedTransformer):
        return GraphedEagle3Head(network, shape, oracle, name)
    return Eagle3Head(network, shape, oracle, name)


def _take_target_ids(stored: StoredTensors, shape: Eagle3Shape) -> Tensor | None:
    """Return the ids ``[R]`` that the head writes, rising, from its offsets; None: all, and no offsets are stored.

    Model Optimizer stores them by frequency: the rows of the read-out are sorted with them.
    """
    config, of_ids = shape.config, None
    if WRITTEN in stored.shapes:
        path, of_ids = stored.path(WRITTEN), stored.take(WRITTEN)
    writes_all = config.draft_vocab_size in (None, config.vocab_size)
    if writes_all and OFFSETS not in stored.shapes:
        return None
    if config.draft_vocab_size is None:
        raise ValueError(f"{stored.path(OFFSETS)}: tensor {OFFSETS!r} needs a 'draft_vocab_size' in config.json")
    given = read_written_ids(stored, config.draft_vocab_size, config.vocab_size, rising=False)
    ids, order = given.sort()
    if not torch.equal(ids, given) and stored.shapes.get(READ_OUT, ())[:1] == ids.shape:
        rows = stored.read(READ_OUT).to(stored.dtype(READ_OUT))[order]
        stored.give(READ_OUT, rows, stored.path(READ_OUT))
    if of_ids is not None:
        check_mask(of_ids, ids, config.vocab_size, path)
    return ids


def _check_borrowed(own: Mapping[str, bool], shape: Eagle3Shape, oracle: HostOracle, stored: StoredTensors) -> None:
    """Refuse a head that would have to borrow a table that does not fit it."""
    config = shape.config
    if not all(own.values()) and config.hidden_size != oracle.hidden_size:
        absent = next(name for name, there in own.items() if not there)
        raise ValueError(
            f"{stored.folder}: tensor {absent!r} is missing in its safetensors, and the oracle's is "
            f"{oracle.hidden_size} wide where the head is {config.hidden_size}"
        )


def _places(network: Eagle3Network, stored: StoredTensors) -> dict[str, Place]:
    """Return where each parameter is stored."""
    named = (name for name in _LAYER_NAMES if any(key.startswith(f"{name}.") for key in stored.shapes))
    layer = next(named, _LAYER_NAMES[0])
    found = {}
    for name, _ in network.named_parameters():
        key = f"{layer}.{name.removeprefix('layer.')}" if name.startswith("layer.") else name
        other = key.replace("fc_norm.", "fcs.")
        found[name] = Place(other if key not in stored.shapes and other in stored.shapes else key, PLAIN)
    return found
