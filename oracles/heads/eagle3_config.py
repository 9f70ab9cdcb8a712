"""The ``config.json`` of an EAGLE-3 head, as its authors, SpecForge and ``speculators`` write it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oracles.checkpoints.config_keys import ConfigKeys
from oracles.checkpoints.hf_config import parse_config
from oracles.heads.aux_layers import AuxLayers, Convention, aux_layers_of
from oracles.heads.head_tensors import check_fit
from oracles.transformer.config import TransformerConfig
from specdec.contracts import HostOracle

# The classes that configs name; the second is what the authors' own files say, which have a draft vocabulary too.
ARCHITECTURES = ("LlamaForCausalLMEagle3", "LlamaForCausalLM")
# Keys of the head, which the config of a transformer layer does not have.
_OF_HEAD = (
    "target_hidden_size", "eagle_config", "fc_norm", "norm_output", "norm_before_residual", "norm_before_fc",
    "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states",
)  # fmt: skip
_INERT_NAMES = """
architectures auto_map dtype embed_requires_grad has_no_defaults_at_init model_type speculators_config
speculators_model_type speculators_version tie_word_embeddings torch_dtype transformers_version
"""
_INERT_SPECULATORS = frozenset(_INERT_NAMES.split())


@dataclass(frozen=True)
class Eagle3Shape:
    """What a config says of a head.

    Attributes:
        config: of its one layer, its vocabularies and its rotary positions.
        target_size: width of the hidden states that it reads.
        layers: which they are.
        fc_norm: each of them is normed.
        norm_before_fc: they are normed side by side.
        norm_before_residual: the residual stream of the layer begins with the normed feature.
        norm_output: the feature for the next token is the normed output.
    """

    config: TransformerConfig
    target_size: int
    layers: AuxLayers
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False


def read_eagle3(
    values: Mapping[str, Any], source: str, oracle: HostOracle, aux_layers: Convention | None
) -> Eagle3Shape:
    """Return the head that a ``config.json`` describes.

    Args:
        values: the parsed file.
        source: its path, for errors.
        oracle: that the head drafts for.
        aux_layers: what numbers of layers mean; None: as the config says, or its format has it.

    Raises:
        ValueError: a key that is missing, of a wrong type, unsupported or unknown; a layer that the oracle lacks;
            another width or vocabulary than the oracle's. It names the file and the key.
    """
    if "speculators_model_type" in values:
        own = ConfigKeys({k: v for k, v in values.items() if k != "transformer_layer_config"}, source)
        nested = values.get("transformer_layer_config")
        if not isinstance(nested, Mapping):
            raise ValueError(f"{source} lacks 'transformer_layer_config', the shape of the head's layer")
        body = {**nested, "draft_vocab_size": own.read("draft_vocab_size", int, None)}
        shape = _shape(own, body, f"{source}: transformer_layer_config", oracle, "inputs", aux_layers)
        own.close(_INERT_SPECULATORS)
    else:
        own = ConfigKeys({k: v for k, v in values.items() if k in _OF_HEAD}, source)
        body = {k: v for k, v in values.items() if k not in _OF_HEAD}
        shape = _shape(own, body, source, oracle, "outputs", aux_layers)
        own.close()
    check_fit(source, oracle, shape.target_size, shape.config.vocab_size)
    return shape


def _shape(
    own: ConfigKeys,
    body: Mapping[str, Any],
    source: str,
    oracle: HostOracle,
    by_format: Convention,
    aux_layers: Convention | None,
) -> Eagle3Shape:
    """Return the shape of a head from its own keys and those of its layer."""
    nested = own.read("eagle_config", dict, {})
    eagle = ConfigKeys(nested, f"{own.source}: eagle_config")
    if not eagle.read("use_aux_hidden_state", bool, True):
        raise ValueError(f"{eagle.source}: 'use_aux_hidden_state' is False; EAGLE-3 reads hidden states of layers")
    ids = own.read_numbers("eagle_aux_hidden_state_layer_ids")
    ids = eagle.read_numbers("eagle_aux_hidden_state_layer_ids") if ids is None else ids
    layers = aux_layers_of(ids, oracle.hidden_layers, by_format, aux_layers, own.source)
    if own.read("num_aux_hidden_states", int, len(layers.ids)) != len(layers.ids):
        raise ValueError(f"{own.source}: 'num_aux_hidden_states' contradicts the layers {layers.ids}")
    flags = {name: own.read(name, bool, False) for name in ("fc_norm", "norm_output", "norm_before_residual")}
    before_fc = own.read("norm_before_fc", bool, eagle.read("norm_before_fc", bool, False))
    eagle.close()
    config = _layer_config(body, source)
    target_size = own.read("target_hidden_size", int, config.hidden_size)
    return Eagle3Shape(config, target_size, layers, norm_before_fc=before_fc, **flags)


def _layer_config(body: Mapping[str, Any], source: str) -> TransformerConfig:
    """Return the shape of the head's layer; whose embeddings and head it has is told by the tensors."""
    plain = {**body, "tie_word_embeddings": False}
    if set(body.get("architectures") or ()) <= set(ARCHITECTURES):
        plain["architectures"] = ["LlamaForCausalLM"] if body.get("model_type", "llama") == "llama" else None
    config = parse_config(plain, source).config
    if config.num_layers != 1:
        raise ValueError(f"{source}: 'num_hidden_layers' is {config.num_layers}; heads of one layer are supported")
    return config
