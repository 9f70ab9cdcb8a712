"""Read a Hugging Face ``config.json``, in today's spelling or the older one, into a ``TransformerConfig``.

Every key is either understood, known to leave the forward pass alone, or refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracles.checkpoints.config_keys import ELSEWHERE, ConfigKeys, errors_of
from oracles.checkpoints.rope_keys import read_rope
from oracles.transformer.config import Activation, TransformerConfig

FULL, SLIDING = "full_attention", "sliding_attention"

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
# Keys that say nothing about the forward pass at inference: provenance, training, generation, other heads.
_INERT_NAMES = """
_attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _from_model_config _name_or_path
attn_implementation custom_pipelines dtype is_llama_config max_sequence_length name_or_path torch_dtype
torchscript transformers.js_config transformers_version unsloth_fixed unsloth_version use_bfloat16 use_cache
attention_dropout attention_probs_dropout_prob attn_pdrop classifier_dropout embd_pdrop gradient_checkpointing
hidden_dropout hidden_dropout_prob initializer_range resid_pdrop
bos_token_id eos_token_id mask_token_id pad_token_id sep_token_id tokenizer_class unk_token_id
_num_labels n_special output_past predict_special_tokens
chunk_size_feed_forward is_decoder n_ctx output_attentions output_hidden_states pretraining_tp
reorder_and_upcast_attn return_dict return_dict_in_generate tf_legacy_loss
finetuning_task id2label label2id num_labels problem_type summary_activation summary_first_dropout
summary_proj_to_labels summary_type summary_use_proj task_specific_params
bad_words_ids begin_suppress_tokens decoder_start_token_id diversity_penalty do_sample early_stopping
encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id
length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
output_scores prefix remove_invalid_values repetition_penalty suppress_tokens temperature top_k top_p typical_p
"""
INERT = frozenset(_INERT_NAMES.split())
# Keys that say that weights are quantised: of most methods, of older llm-compressor, of MLX.
_QUANTISED = ("quantization_config", "compression_config", "quantization")
# Files beside the config that say so, and the older tools that write them.
_QUANTISED_BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
_ARE_QUANTISED = (
    "has quantised the weights, and only floats are read: give the checkpoint that they were made of, which "
    f"weights='int8' or 'int4' rounds here, or its GGUF file; or run this one {ELSEWHERE}"
)
# Keys that would change the forward pass, and the one value under which they do not.
FIXED: dict[str, Any] = {
    "activation": "swiglu",
    "add_cross_attention": False,
    "auto_map": None,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
    "rope_interleaved": False,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "tie_encoder_decoder": False,
    "use_mrope": False,
}


@dataclass(frozen=True)
class CheckpointShape:
    """What a ``config.json`` says about a checkpoint.

    Attributes:
        naming: the family of the weights' tensor names: "llama", "gpt2", "gpt_neox", "gguf" or "gguf_llama".
        config: the model.
        stored_positions: rows of a learned position table in the file (``config.max_context`` may be capped below it).
    """

    naming: str
    config: TransformerConfig
    stored_positions: int


def parse_config(
    values: Mapping[str, Any], source: str, tokenizer_size: int | None = None, max_context: int | None = None
) -> CheckpointShape:
    """Return the model that a ``config.json`` describes.

    Args:
        values: the parsed file.
        source: its path, for errors.
        tokenizer_size: the true vocabulary size if it is known; rows of the model beyond it are padding.
        max_context: caps the context.

    Raises:
        ValueError: an unknown architecture, or a key that is missing, of a wrong type, contradictory, unsupported or
            unknown; the message names the file and the key.
    """
    keys = ConfigKeys(values, source)
    architecture = _architecture(keys)
    _check_unquantised(keys)
    fields = _FAMILIES[architecture][1](keys)
    keys.read("vocabulary_of", str, None)  # whose tokens and embeddings it reads, for those who load it
    keys.close(INERT, FIXED)
    stored, rows = fields["max_context"], fields["vocab_size"]
    if max_context is not None:
        fields["max_context"] = min(stored, max_context)
    if tokenizer_size is not None and tokenizer_size < rows:
        fields |= {"vocab_size": tokenizer_size, "padded_vocab_size": rows}
    with errors_of(source):
        config = TransformerConfig(**fields)
    naming = architecture if architecture in ("gpt2", "gpt_neox") else "llama"
    return CheckpointShape(naming, config, stored)


def read_layers(keys: ConfigKeys) -> TransformerConfig:
    """Return the shape of layers from keys as Qwen3's checkpoints spell them; ``keys`` stay open.

    Raises:
        ValueError: a key is missing, of a wrong type, contradictory or unsupported; the message names file and key.
    """
    fields = _qwen3(keys)
    with errors_of(keys.source):
        return TransformerConfig(**fields)


def _architecture(keys: ConfigKeys) -> str:
    """Return the family that ``model_type`` names, else ``architectures``, all of whose entries must agree with it."""
    classes = keys.read("architectures", list, [])
    model_type = keys.read("model_type", str, "")
    for family, (known, _) in _FAMILIES.items():
        if model_type in (family, "") and (classes or model_type) and set(classes) <= set(known):
            return family
    raise ValueError(
        f"{keys.source}: unknown architecture (model_type {model_type!r}, architectures {classes}); "
        f"known: {', '.join(_FAMILIES)} as causal language models; another one may run {ELSEWHERE}"
    )


def _check_unquantised(keys: ConfigKeys) -> None:
    """Refuse weights that are not stored as floats, with an error that names the quantisation method."""
    for name in _QUANTISED:
        if found := keys.read(name, dict, {}):
            method = found.get("quant_method", found.get("format", "an unnamed method"))
            raise ValueError(f"{keys.source}: {name!r} says that {method} {_ARE_QUANTISED}")


def check_unquantised_beside(folder: Path) -> None:
    """Refuse weights that a file beside the config declares to be quantised.

    Raises:
        ValueError: there is such a file; the message names the method.
    """
    for name, method in _QUANTISED_BESIDE.items():
        if (folder / name).exists():
            raise ValueError(f"{folder / name} says that {method} {_ARE_QUANTISED}")


def _activation(keys: ConfigKeys, name: str, default: str) -> Activation:
    value = keys.read(name, str, default)
    if value not in ACTIVATIONS:
        raise ValueError(f"{keys.source}: {name!r} is {value!r}; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[value]


def _window(keys: ConfigKeys, window: int | None, by_rule: list[str]) -> int | None:
    """Return the sliding window of all layers; windows in some layers only are refused.

    Args:
        keys: the whole config.
        window: of the layers that slide.
        by_rule: the layers' types if ``layer_types`` is absent.
    """
    types = set(keys.read("layer_types", list, by_rule))
    if types == {FULL}:
        return None
    if types == {SLIDING} and window is not None:
        return window
    raise ValueError(
        f"{keys.source}: 'layer_types' {sorted(types)} with sliding_window {window}; all layers must be alike, and "
        f"others may run {ELSEWHERE}"
    )


def _qwen_window(keys: ConfigKeys, num_layers: int) -> int | None:
    """Return the window of Qwen2 and Qwen3, which slides from layer ``max_window_layers`` on, if it is used."""
    given = keys.read("sliding_window", int, None if "sliding_window" in keys.values else 4096)
    window = given if keys.read("use_sliding_window", bool, False) else None
    first = keys.read("max_window_layers", int, 28)
    slides = window is not None and first < num_layers
    return _window(keys, window, [*[FULL] * (window is None or first > 0), *[SLIDING] * slides])


def _llama_like(
    keys: ConfigKeys, default_kv_heads: int | None = None, default_head: int | None = None
) -> dict[str, Any]:
    """Return the fields that all architectures with Llama's tensor names share."""
    num_heads = keys.read("num_attention_heads", int)
    absent = default_kv_heads if "num_key_value_heads" not in keys.values else None
    rope = read_rope(keys, ("rope_theta",), ("partial_rotary_factor",), 1.0)
    if rope.pop("part") != 1.0:
        raise ValueError(f"{keys.source}: 'partial_rotary_factor' must be 1 in this architecture")
    return rope | {
        "vocab_size": keys.read("vocab_size", int),
        "hidden_size": keys.read("hidden_size", int),
        "num_layers": keys.read("num_hidden_layers", int),
        "num_heads": num_heads,
        "num_kv_heads": keys.read("num_key_value_heads", int, absent),
        "head_dim": keys.read("head_dim", int, default_head),
        "intermediate_size": keys.read("intermediate_size", int),
        "norm_eps": keys.read("rms_norm_eps", float, 1e-6),
        "activation": _activation(keys, "hidden_act", "silu"),
        "tie_embeddings": keys.read("tie_word_embeddings", bool, False),
        "draft_vocab_size": keys.read("draft_vocab_size", int, None),
    }


def _llama(keys: ConfigKeys) -> dict[str, Any]:
    bias = keys.read("attention_bias", bool, False)
    biases = {"qkv_bias": bias, "attn_out_bias": bias, "mlp_bias": keys.read("mlp_bias", bool, False)}
    return _llama_like(keys) | biases | {"sliding_window": _window(keys, None, [FULL])}


def _mistral(keys: ConfigKeys) -> dict[str, Any]:
    window = keys.read("sliding_window", int, None if "sliding_window" in keys.values else 4096)
    if _window(keys, window, [FULL if window is None else SLIDING]) != window:
        raise ValueError(f"{keys.source}: 'layer_types' says full attention, but sliding_window is {window}; keep one")
    return _llama_like(keys, default_kv_heads=8) | {"sliding_window": window}


def _qwen2(keys: ConfigKeys) -> dict[str, Any]:
    fields = _llama_like(keys, default_kv_heads=32)
    return fields | {"qkv_bias": True, "sliding_window": _qwen_window(keys, fields["num_layers"])}


def _qwen3(keys: ConfigKeys) -> dict[str, Any]:
    fields = _llama_like(keys, default_kv_heads=32, default_head=128)
    bias = keys.read("attention_bias", bool, False)
    window = _qwen_window(keys, fields["num_layers"])
    return fields | {"qk_norm": True, "qkv_bias": bias, "attn_out_bias": bias, "sliding_window": window}


def _gpt2(keys: ConfigKeys) -> dict[str, Any]:
    hidden = keys.read("n_embd", int)
    return {
        "vocab_size": keys.read("vocab_size", int),
        "hidden_size": hidden,
        "num_layers": keys.read("n_layer", int),
        "num_heads": keys.read("n_head", int),
        "intermediate_size": keys.read("n_inner", int, 4 * hidden),
        "max_context": keys.read("n_positions", int),
        "norm": "layer",
        "norm_eps": keys.read("layer_norm_epsilon", float, 1e-5),
        "activation": _activation(keys, "activation_function", "gelu_new"),
        "gated": False,
        "positions": "learned",
        "qkv_bias": True,
        "attn_out_bias": True,
        "mlp_bias": True,
        "tie_embeddings": keys.read("tie_word_embeddings", bool, True),
    }


def _gpt_neox(keys: ConfigKeys) -> dict[str, Any]:
    hidden, num_heads = keys.read("hidden_size", int), keys.read("num_attention_heads", int)
    thetas, parts = ("rotary_emb_base", "rope_theta"), ("rotary_pct", "partial_rotary_factor")
    rope = read_rope(keys, thetas, parts, 0.25)
    part = rope.pop("part")
    if not 0.0 <= part <= 1.0:
        raise ValueError(f"{keys.source}: {' or '.join(map(repr, parts))} is {part}; a part of a head is within 0..1")
    bias = keys.read("attention_bias", bool, True)
    return rope | {
        "rope_dim": int(hidden // max(num_heads, 1) * part),
        "vocab_size": keys.read("vocab_size", int),
        "hidden_size": hidden,
        "num_layers": keys.read("num_hidden_layers", int),
        "num_heads": num_heads,
        "intermediate_size": keys.read("intermediate_size", int),
        "norm": "layer",
        "norm_eps": keys.read("layer_norm_eps", float, 1e-5),
        "activation": _activation(keys, "hidden_act", "gelu"),
        "gated": False,
        "qkv_bias": bias,
        "attn_out_bias": bias,
        "mlp_bias": True,
        "parallel_residual": keys.read("use_parallel_residual", bool, True),
        "tie_embeddings": keys.read("tie_word_embeddings", bool, False),
    }


# Of each family, by its ``model_type``: the classes that ``architectures`` may name, and what reads its keys.
_FAMILIES: dict[str, tuple[tuple[str, ...], Callable[[ConfigKeys], dict[str, Any]]]] = {
    "llama": (("LlamaForCausalLM", "LlamaModel", "LLaMAForCausalLM"), _llama),
    "mistral": (("MistralForCausalLM", "MistralModel"), _mistral),
    "qwen2": (("Qwen2ForCausalLM", "Qwen2Model"), _qwen2),
    "qwen3": (("Qwen3ForCausalLM", "Qwen3Model"), _qwen3),
    "gpt2": (("GPT2LMHeadModel", "GPT2Model"), _gpt2),
    "gpt_neox": (("GPTNeoXForCausalLM", "GPTNeoXModel"), _gpt_neox),
}
