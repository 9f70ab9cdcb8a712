"""The ``config.json`` of an EAGLE-3 head, in the layouts in which heads are published."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from oracles.checkpoints.config_keys import ConfigKeys, errors_of
from oracles.checkpoints.hf_config import SLIDING, parse_config
from oracles.heads.aux_layers import AuxLayers, Convention, aux_layers_of
from oracles.heads.head_tensors import check_depth, check_fit
from oracles.transformer.config import TransformerConfig
from specdec.contracts import HostOracle

# The classes that configs name: SpecForge's; the authors', which plain models name too; vLLM's, which AngelSlim writes
# as well, and which numbers inputs of layers; DeepSpec's.
OF_AUTHORS, OF_VLLM = "LlamaForCausalLM", "Eagle3LlamaForCausalLM"
_OF_LLAMA = ("LlamaForCausalLMEagle3", OF_AUTHORS, OF_VLLM)
ARCHITECTURES = (*_OF_LLAMA, "Qwen3Eagle3Model")
# Keys of the head, which the config of a transformer layer does not have; and those that say nothing of its pass.
_OF_HEAD = (
    "target_hidden_size", "eagle_config", "fc_norm", "norm_output", "norm_before_residual", "norm_before_fc",
    "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states", "target_layer_ids", "truncated_vocab_size",
    "num_target_layers",
)  # fmt: skip
_INERT = (
    "target_model_type", "decoder_sparse_step", "draft_num_hidden_layers", "step_loss_decay",
    "target_model_name_or_path", "ttt_length", "output_router_logits", "router_aux_loss_coef",
)  # fmt: skip
# What Model Optimizer writes for every head, and the one value that means EAGLE-3.
_EAGLE_FIXED = {
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
# Keys of Qwen's layers that remain in configs of Llama's layers; there only 'layer_types' makes a window.
_OF_WINDOWS = ("max_window_layers", "sliding_window", "use_sliding_window")
_INERT_NAMES = """
architectures auto_map dtype embed_requires_grad has_no_defaults_at_init inference_type model_type speculators_config
speculators_model_type speculators_version tie_word_embeddings torch_dtype transformers_version
"""
_INERT_SPECULATORS = frozenset(_INERT_NAMES.split())


@dataclass(frozen=True)
class Eagle3Shape:
    """What a config says about a head.

    Attributes:
        config: of its one layer, its vocabularies and its rotary positions.
        target_size: width of the hidden states that it reads.
        layers: the layers that give these hidden states.
        fc_norm: each of the hidden states is normed.
        norm_before_fc: the hidden states are normed side by side.
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
        oracle: the one that the head drafts for.
        aux_layers: what numbers of layers mean; None: by the config, or by its format.

    Raises:
        ValueError: a key that is missing, of a wrong type, unsupported or unknown; a layer that the oracle lacks;
            another width or vocabulary than the oracle's. The message names the file and the key.
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
        body = {k: v for k, v in values.items() if k not in (*_OF_HEAD, *_INERT)}
        written = body.get("draft_vocab_size") or body.get("vocab_size")
        if own.read("truncated_vocab_size", int, written) != written:
            raise ValueError(f"{source}: 'truncated_vocab_size' contradicts the ids that the head writes, {written}")
        check_depth(own, oracle)
        by_format: Convention = "inputs" if OF_VLLM in values["architectures"] else "outputs"
        shape = _shape(own, body, source, oracle, by_format, aux_layers)
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
    named = "eagle_aux_hidden_state_layer_ids"
    told = [own.read_numbers(named), eagle.read_numbers(named), own.read_numbers("target_layer_ids")]
    # Trainers and servers collect states in the order of the layers, whatever the order in a config.
    ids = next((sorted(given) for given in told if given is not None), None)
    layers = aux_layers_of(ids, oracle.hidden_layers, by_format, aux_layers, own.source)
    if own.read("num_aux_hidden_states", int, len(layers.ids)) != len(layers.ids):
        raise ValueError(f"{own.source}: 'num_aux_hidden_states' contradicts the layers {layers.ids}")
    flags = {name: own.read(name, bool, False) for name in ("fc_norm", "norm_output", "norm_before_residual")}
    before_fc = own.read("norm_before_fc", bool, eagle.read("norm_before_fc", bool, False))
    eagle.close({"parallel_draft_heads_num_layers"}, _EAGLE_FIXED)
    config = _layer_config(body, source)
    target_size = own.read("target_hidden_size", int, config.hidden_size)
    return Eagle3Shape(config, target_size, layers, norm_before_fc=before_fc, **flags)


def _layer_config(body: Mapping[str, Any], source: str) -> TransformerConfig:
    """Return the shape of the head's one layer.

    Some values may describe the target instead: the number of layers, and whose embeddings and head there are. The
    tensors tell these.
    """
    plain: dict[str, Any] = {**body, "tie_word_embeddings": False, "num_hidden_layers": 1}
    window: int | None = None
    classes = set(body.get("architectures") or ())
    if classes & set(_OF_LLAMA) or (not classes and body.get("model_type", "llama") == "llama"):
        keys = ConfigKeys(body, source)
        plain = {name: value for name, value in plain.items() if name not in _OF_WINDOWS}
        plain |= {"architectures": [OF_AUTHORS], "model_type": "llama"}
        if keys.read("layer_types", list, []) == [SLIDING]:
            window, plain["layer_types"] = keys.read("sliding_window", int), None
    elif classes <= set(ARCHITECTURES):
        plain["architectures"] = None
    config = parse_config(plain, source).config
    with errors_of(source):
        return config if window is None else replace(config, sliding_window=window)
