"""DFlash and DSpark on disk: the layouts of their authors, and that of ``speculators``."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oracles.checkpoints.config_keys import REQUIRED, ConfigKeys, errors_of, read_any
from oracles.checkpoints.hf_config import FIXED, FULL, INERT, SLIDING, read_layers
from oracles.checkpoints.tensor_names import PLAIN, Place, first_rows
from oracles.checkpoints.weights import StoredTensors
from oracles.graphed import GraphedTransformer
from oracles.heads.aux_layers import AuxLayers, Convention
from oracles.heads.block_head import DFlashHead
from oracles.heads.block_network import BlockNetwork, BlockShape, LayerReach
from oracles.heads.graphed_block import GraphedBlockHead
from oracles.heads.head_tensors import READ_OUT, HeadOptions, borrow_rows, check_depth, check_fit, fill_network
from oracles.heads.markov_head import MARKOV_KINDS
from oracles.heads.native_block import NativeBlockHead
from oracles.native import NativeTransformer
from oracles.transformer.config import TransformerConfig
from oracles.transformer.draft_vocabulary import OFFSETS, WRITTEN, check_mask, read_written_ids
from specdec.contracts import BITWISE_NODES, HostOracle

# Keys that say how a head was trained, or where, or what its tensors tell; and tensors that say nothing of its pass.
_NAMES_OF_TRAINING = """
attention_backend attention_mode auf auto_map ce_loss_alpha confidence_head_alpha emb_dim gru_hidden_dim
has_no_defaults_at_init l1_loss_alpha lambda_base_decay_ratio lambda_base_start loss_decay_gamma max_anchors num_anchors
pure_draft_prefix_len speculators_config speculators_version tie_word_embeddings model_type architectures
"""
_OF_TRAINING = frozenset(_NAMES_OF_TRAINING.split())
# Defaults that ``transformers`` leaves out of a config of Qwen3 layers.
_QWEN3 = {
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 151936,
}
_FIXED = {
    **FIXED,
    "attention_sink_bias": False,
    "causal": False,
    "is_causal": False,
    "shift_label": False,
    "use_swa": False,
}
_OWN_HEADS = ("markov_head.", "confidence_head.")
_OF_TARGET = frozenset((WRITTEN, OFFSETS, "verifier_norm.weight", "verifier_lm_head.weight"))
LoadedBlockHead = DFlashHead | GraphedBlockHead | NativeBlockHead
# The classes that configs name; the last one is SpecForge's DSpark.
DFLASH, DSPARK, OF_SPECFORGE = ("DFlashDraftModel",), ("Qwen3DSparkModel",), ("DSparkDraftModel",)


def is_block_head(values: Mapping[str, Any]) -> bool:
    """Tell whether a ``config.json`` describes a block drafter of one of the known layouts."""
    if values.get("speculators_model_type") in ("dflash", "dspark"):
        return True
    classes = tuple(values.get("architectures") or ())
    return classes in (DFLASH, DSPARK, OF_SPECFORGE) or (not classes and "dflash_config" in values)


def load_block_head(
    folder: Path, values: Mapping[str, Any], oracle: HostOracle, options: HeadOptions
) -> LoadedBlockHead:
    """Return the block drafter in a folder, bound to the oracle that it was trained for.

    Args:
        folder: holds ``config.json`` and safetensors.
        values: of its ``config.json``.
        oracle: lends its embeddings and its read-out.
        options: other arguments of ``load_head``. Unless these say otherwise, DFlash and DSpark number outputs of
            layers, ``speculators`` inputs. All linear layers are rounded except those of Markov and confidence heads.

    Raises:
        ValueError: a config that is unknown, contradictory, or of another oracle; a tensor that is missing, unexpected
            or misshapen; a mask for which the oracle has no embedding. The message names the file.
    """
    backend, keys = options.backend_for(oracle), ConfigKeys(values, str(folder / "config.json"))
    stored = StoredTensors(folder)
    shape, draft_vocab = _read(keys, oracle, options.aux_layers, len(stored.shapes))
    shape = replace(shape, own_embeddings="embed_tokens.weight" in stored.shapes, own_head=READ_OUT in stored.shapes)
    _check(shape, keys.source, oracle, stored)
    target_ids, borrows_rows = None, False
    if draft_vocab < shape.config.vocab_size:
        target_ids = _target_ids(shape, draft_vocab, oracle, stored).to(oracle.device)
        if not shape.own_head:
            borrow_rows(stored, target_ids, oracle)
            borrows_rows, shape = True, replace(shape, own_head=True)
    shape = replace(shape, columns=oracle.vocab_size if target_ids is None else draft_vocab)
    with torch.device("meta"):
        network = BlockNetwork(shape, oracle.hidden_size)
    rows = {READ_OUT: draft_vocab, "markov_head.markov_w2.weight": draft_vocab}
    names = {name: _stored_name(name, stored) for name, _ in network.named_parameters()}
    places = {
        name: Place(key, first_rows(shape.columns, rows[name]) if name in rows else PLAIN)
        for name, key in names.items()
    }
    borrowed = network.lm_head if borrows_rows else None
    fill_network(network, places, stored, oracle, options, network.rounded_modules, borrowed, _OF_TARGET)
    if backend == "native" and isinstance(oracle, NativeTransformer):
        return NativeBlockHead(shape, network, oracle, target_ids)
    if backend == "graphed" and isinstance(oracle, GraphedTransformer):
        return GraphedBlockHead(shape, network, oracle, target_ids)
    return DFlashHead(shape, network, oracle, target_ids)


def _stored_name(name: str, stored: StoredTensors) -> str:
    """Return the name of a tensor on disk: SpecForge's early files hold a DSpark's own heads one level deeper."""
    deeper = f"logit_head.{name}"
    return deeper if name.startswith(_OWN_HEADS) and deeper in stored.shapes else name


def _read(
    keys: ConfigKeys, oracle: HostOracle, aux_layers: Convention | None, num_tensors: int
) -> tuple[BlockShape, int]:
    """Return a shape, without the fields that only tensors tell, and the number of the head's columns."""
    by_format: Convention = "outputs"
    own, inner, ids_name = keys, keys, "target_layer_ids"
    classes = tuple(keys.values.get("architectures") or ())
    is_dspark = from_anchor = classes in (DSPARK, OF_SPECFORGE)
    if "speculators_model_type" in keys.values:
        is_dspark = keys.read("speculators_model_type", str) == "dspark"
        # Files without the key are older than it; their places are for their own tokens.
        from_anchor = keys.read("sample_from_anchor", bool, False)
        inner, by_format, ids_name = _nested_keys(keys), "inputs", "aux_hidden_state_layer_ids"
    else:
        check_depth(keys, oracle)
        if classes != DSPARK:
            own = ConfigKeys(keys.read("dflash_config", dict), f"{keys.source}: dflash_config")
    config, windows = _read_layers(inner, num_tensors)
    shape = BlockShape(
        config=config,
        reaches=_reaches(keys, own, windows),
        layers=_layer_ids(own, ids_name),
        block_size=read_any([(keys, "block_size"), (own, "block_size")], int, REQUIRED),
        mask_id=own.read("mask_token_id", int),
        from_anchor=from_anchor,
        **(_markov(keys, own) if is_dspark else {}),
    )
    if inner is not keys:
        inner.close(INERT | _OF_TRAINING, FIXED)
        if keys.read("target_hidden_size", int, shape.config.hidden_size) != shape.config.hidden_size:
            raise ValueError(f"{keys.source}: target_hidden_size differs from hidden_size; a block reads one width")
    fixed = {**_FIXED, "projector_type": "dspark" if is_dspark else "dflash"}
    if own is not keys:
        own.close(_OF_TRAINING, fixed)
    draft_vocab = keys.read("draft_vocab_size", int, shape.config.vocab_size)
    keys.close(INERT | _OF_TRAINING, fixed)
    said_by = "format" if aux_layers is None else "aux_layers"
    with errors_of(keys.source):
        layers = AuxLayers(shape.layers, aux_layers or by_format, said_by, oracle.hidden_layers)
    return replace(shape, layers=layers.outputs, layers_said=str(layers)), draft_vocab


def _nested_keys(keys: ConfigKeys) -> ConfigKeys:
    """Return the keys of the layers in a config of ``speculators``."""
    return ConfigKeys(_QWEN3 | keys.read("transformer_layer_config", dict), f"{keys.source}: transformer_layer_config")


def _read_layers(keys: ConfigKeys, num_tensors: int) -> tuple[TransformerConfig, tuple[int | None, ...]]:
    """Return the shape of the layers, without windows, and the window of each; None: it sees the whole context."""
    types, slides = keys.read("layer_types", list, []), keys.read("use_sliding_window", bool, False)
    window = keys.read("sliding_window", int, None if "sliding_window" in keys.values else 4096)
    first = keys.read("max_window_layers", int, 28)
    # Windows may differ between layers; the other keys are read without them.
    keys.values = {**keys.values, "layer_types": [FULL]}
    config = read_layers(keys)
    count = config.num_layers
    if count > num_tensors:
        raise ValueError(f"{keys.source}: {count} layers are more than the {num_tensors} stored tensors")
    by_rule = [SLIDING if slides and window is not None and layer >= first else FULL for layer in range(count)]
    types = types or by_rule
    if len(types) != count or not set(types) <= {FULL, SLIDING}:
        raise ValueError(f"{keys.source}: 'layer_types' is {types}; it names {FULL} or {SLIDING} for each layer")
    if SLIDING in types and not (slides and window is not None and 0 < window < 2**31):
        raise ValueError(
            f"{keys.source}: 'layer_types' has {SLIDING}, with sliding_window {window} and use_sliding_window "
            f"{slides}; a window has 1 position or more, below 2 ** 31, and 'use_sliding_window' is true"
        )
    return config, tuple(window if kind == SLIDING else None for kind in types)


def _reaches(keys: ConfigKeys, own: ConfigKeys, windows: tuple[int | None, ...]) -> tuple[LayerReach, ...]:
    """Return what each layer sees. By default, layers without a window look ahead in a block."""
    if "speculators_model_type" in keys.values:
        full, sliding = True, keys.read("sliding_window_non_causal", bool, False)
    else:
        places = [(place, name) for name in ("causal", "is_causal") for place in (own, keys)]
        causal = read_any(places, bool, None)
        full, sliding = (True, False) if causal is None else (not causal, not causal)
    return tuple(LayerReach(window, full if window is None else sliding) for window in windows)


def _markov(keys: ConfigKeys, own: ConfigKeys) -> dict[str, Any]:
    """Return what a config says about the Markov head and the confidence head, in either place."""

    def told(name: str, kind: type, default: Any = REQUIRED) -> Any:
        return read_any([(keys, name), (own, name)], kind, default)

    rank, kind = told("markov_rank", int), told("markov_head_type", str, "vanilla")
    if kind not in MARKOV_KINDS:
        raise ValueError(f"{keys.source}: 'markov_head_type' is {kind!r}; known: {', '.join(MARKOV_KINDS)}")
    confidence = told("enable_confidence_head", bool)
    with_markov = told("confidence_head_with_markov", bool, False) and confidence
    if rank < 0 or (with_markov and not rank):
        raise ValueError(f"{keys.source}: 'markov_rank' is {rank}; a confidence head with Markov needs 1 or more")
    return {
        "markov": kind if rank else None,
        "markov_rank": rank,
        "confidence": confidence,
        "confidence_with_markov": with_markov,
    }


def _layer_ids(keys: ConfigKeys, name: str) -> tuple[int, ...]:
    ids = keys.read_numbers(name)
    if not ids:
        raise ValueError(f"{keys.source} lacks {name!r}: the layers that the head reads")
    return ids


def _check(shape: BlockShape, source: str, oracle: HostOracle, stored: StoredTensors) -> None:
    """Refuse a head that does not fit this oracle, or that no drafter can run."""
    config = shape.config
    check_fit(source, oracle, config.hidden_size, config.vocab_size)
    fewest = 2 - shape.from_anchor
    if not fewest <= shape.block_size <= BITWISE_NODES:
        raise ValueError(f"{source}: 'block_size' is {shape.block_size}; blocks hold {fewest}..{BITWISE_NODES} tokens")
    if not 0 <= shape.mask_id < config.vocab_size:
        raise ValueError(f"{source}: 'mask_token_id' {shape.mask_id} is none of {config.vocab_size} ids")
    if not shape.own_embeddings:
        _check_mask(shape.mask_id, source, oracle)


def _check_mask(mask_id: int, source: str, oracle: HostOracle) -> None:
    """Refuse a mask for which the oracle has no embedding; it may be one of the table's padding rows."""
    try:
        oracle.embed(torch.tensor([mask_id], device=oracle.device))
    except (ValueError, IndexError) as error:
        raise ValueError(
            f"{source}: the oracle has no embedding of 'mask_token_id' {mask_id}, a row that pads its table: load "
            "it with backend='eager', which keeps such rows"
        ) from error


def _target_ids(shape: BlockShape, draft_vocab: int, oracle: HostOracle, stored: StoredTensors) -> Tensor:
    """Return the id that each column is for."""
    ids = read_written_ids(stored, draft_vocab, oracle.vocab_size)
    if WRITTEN in stored.shapes:
        check_mask(stored.read(WRITTEN), ids, shape.config.vocab_size, stored.path(WRITTEN))
    return ids
