"""Read a GGUF file's keys into a ``TransformerConfig``: each one is understood, known to be inert, or refused."""

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from oracles.checkpoints.config_keys import ELSEWHERE, ConfigKeys, errors_of, read_any
from oracles.checkpoints.gguf.gguf_reading import GGUFFile
from oracles.checkpoints.rope_keys import stretch_context
from oracles.transformer.config import RopeScaling, TransformerConfig
from oracles.transformer.rotary import yarn_magnitude

FREQUENCY_FACTORS, EMBEDDING, HEAD = "rope_freqs.weight", "token_embd.weight", "output.weight"
# The version of ggml's blocks; earlier ones stored other numbers under the same names.
_BLOCKS_VERSION = 2
# Keys of an architecture that do not affect the forward pass.
INERT = frozenset(["vocab_size", "tensor_data_layout", "rope.scaling.finetuned"])
# Keys that would change the forward pass, and the one value under which they do not.
FIXED: dict[str, Any] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "use_parallel_residual": False,
}
# Defaults for yarn's bounds, which a file need not name.
_BETAS = {"fast": 32.0, "slow": 1.0}
# The tensor whose bias in the first layer tells whether all layers have one.
_BIASES = {"qkv_bias": "attn_q", "attn_out_bias": "attn_output", "mlp_bias": "ffn_down"}
# What an architecture always has, and which biases it may have.
_FAMILIES: dict[str, tuple[dict[str, bool], tuple[str, ...]]] = {
    "llama": ({}, ("qkv_bias", "attn_out_bias", "mlp_bias")),
    "qwen2": ({"qkv_bias": True}, ()),
    "qwen3": ({"qk_norm": True}, ("qkv_bias", "attn_out_bias")),
}


def read_config(
    file: GGUFFile, vocab_size: int | None = None, max_context: int | None = None
) -> tuple[str, TransformerConfig]:
    """Return the architecture's name, and the model.

    Args:
        file: its keys, and the names and shapes of its tensors, are read, and the numbers of ``rope_freqs.weight``.
        vocab_size: the true vocabulary size if it is known; rows of the embedding beyond it are padding.
        max_context: caps the context.

    Raises:
        ValueError: an unknown architecture, a key that is missing, of a wrong type, contradictory, unsupported or
            unknown, or no embedding; it names the file and the key.
    """
    architecture = _architecture(file)
    prefix = f"{architecture}."
    values = {name.removeprefix(prefix): value for name, value in file.keys.items() if name.startswith(prefix)}
    if several := [name for name, value in values.items() if isinstance(value, list | np.ndarray)]:
        raise ValueError(
            f"{file.path}: {prefix + several[0]!r} is an array; only models whose layers are alike are read"
        )
    keys = ConfigKeys(values, f"{file.path}: {architecture}")
    if EMBEDDING not in file.tensors:
        raise ValueError(f"{file.path}: tensor {EMBEDDING!r} is missing")
    rows = file.tensors[EMBEDDING].shape[0]
    if rows < (size := rows if vocab_size is None else vocab_size):
        raise ValueError(f"{file.path}: the tokenizer has {size} ids, and {EMBEDDING!r} {rows} rows")
    fixed, biases = _FAMILIES[architecture]
    fields = _shape(keys) | fixed | {"vocab_size": size}
    fields |= {name: f"blk.0.{_BIASES[name]}.bias" in file.tensors for name in biases}
    if (scaling := fields["rope_scaling"]) is not None and scaling.kind == "yarn":
        original = keys.read("rope.scaling.original_context_length", int, 0)
        fields["max_context"] = stretch_context(fields["max_context"], scaling, original)
    if FREQUENCY_FACTORS in file.tensors:
        fields["rope_scaling"] = _frequency_factors(file, fields["rope_scaling"])
    if max_context is not None:
        fields["max_context"] = min(fields["max_context"], max_context)
    _check_window(keys, fields["max_context"])
    keys.close(INERT, FIXED)
    fields |= {"tie_embeddings": HEAD not in file.tensors, "padded_vocab_size": rows if rows > size else None}
    with errors_of(file.path):
        return architecture, TransformerConfig(**fields)


def _architecture(file: GGUFFile) -> str:
    """Return the architecture, after checking that the file holds a whole model."""
    general = ConfigKeys(file.keys, str(file.path))
    if (kind := general.read("general.type", str, "model")) != "model":
        raise ValueError(f"{file.path}: 'general.type' is {kind!r}; only a 'model' can be loaded")
    if (parts := general.read("split.count", int, 0)) > 1:
        raise ValueError(f"{file.path}: it is one of {parts} parts; join them (llama-gguf-split --merge)")
    if (version := general.read("general.quantization_version", int, _BLOCKS_VERSION)) != _BLOCKS_VERSION:
        raise ValueError(f"{file.path}: 'general.quantization_version' is {version}; only {_BLOCKS_VERSION} is read")
    found = general.read("general.architecture", str)
    if found not in _FAMILIES:
        raise ValueError(
            f"{file.path}: 'general.architecture' is {found!r}; known: {', '.join(_FAMILIES)}; of another one the "
            f"checkpoint directory may run {ELSEWHERE}"
        )
    return str(found)


def _shape(keys: ConfigKeys) -> dict[str, Any]:
    """Return the fields that all architectures spell in the same way."""
    num_heads, hidden = keys.read("attention.head_count", int), keys.read("embedding_length", int)
    default = hidden // max(num_heads, 1)
    head_dim = read_any([(keys, "attention.key_length"), (keys, "attention.value_length")], int, default)
    if (rotated := keys.read("rope.dimension_count", int, head_dim)) != head_dim:
        raise ValueError(
            f"{keys.source}: 'rope.dimension_count' is {rotated}; heads of {head_dim} must rotate as a whole"
        )
    return {
        "hidden_size": hidden,
        "num_layers": keys.read("block_count", int),
        "num_heads": num_heads,
        "num_kv_heads": keys.read("attention.head_count_kv", int, num_heads),
        "head_dim": head_dim,
        "intermediate_size": keys.read("feed_forward_length", int),
        "max_context": keys.read("context_length", int),
        "norm_eps": keys.read("attention.layer_norm_rms_epsilon", float),
        "rope_theta": float(keys.read("rope.freq_base", float, 10000.0)),
        "rope_scaling": _scaling(keys),
    }


def _scaling(keys: ConfigKeys) -> RopeScaling | None:
    """Return the scaling; today's keys or the older one may ask for a linear one."""
    if (kind := keys.read("rope.scaling.type", str, "linear")) not in ("none", "linear", "yarn"):
        raise ValueError(
            f"{keys.source}: 'rope.scaling.type' is {kind!r}; known: none, linear, yarn; with another one the "
            f"checkpoint directory may run {ELSEWHERE}"
        )
    factor = float(read_any([(keys, "rope.scaling.factor"), (keys, "rope.scale_linear")], float, 0.0))
    original = keys.read("rope.scaling.original_context_length", int, keys.read("context_length", int))
    bounds = {f"beta_{name}": keys.read(f"rope.scaling.yarn_beta_{name}", float, at) for name, at in _BETAS.items()}
    times = keys.read("rope.scaling.attn_factor", float, 1.0)
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return None
    with errors_of(keys.source):
        if kind == "linear":
            return RopeScaling("linear", factor)
        scaling = RopeScaling("yarn", factor, original_context=original, **bounds)
        # It is a further factor on the usual magnitude of cosines and sines.
        return scaling if times == 1.0 else replace(scaling, attention_factor=times * yarn_magnitude(factor))


def _frequency_factors(file: GGUFFile, scaling: RopeScaling | None) -> RopeScaling:
    """Return the scaling that a tensor holds: a divisor for each rotary frequency."""
    tensor = file.tensors[FREQUENCY_FACTORS]
    factors = tensor.storage.read(file.blocks(FREQUENCY_FACTORS))
    if scaling is not None or len(tensor.shape) != 1 or not isinstance(factors, Tensor):
        raise ValueError(
            f"{file.path}: tensor {FREQUENCY_FACTORS!r} must hold floats, one for each rotary pair, and no other "
            "scaling may stand beside it"
        )
    with errors_of(f"{file.path}: tensor {FREQUENCY_FACTORS!r}"):
        return RopeScaling("factors", 1.0, factors=tuple(factors.flatten().tolist()))


def _check_window(keys: ConfigKeys, context: int) -> None:
    """Refuse a window below the context: files of these architectures do not say which layers slide."""
    window = keys.read("attention.sliding_window", int, 0)
    if 0 < window < context:
        raise ValueError(
            f"{keys.source}: 'attention.sliding_window' is {window}, and it is not said in which layers: load the "
            f"checkpoint directory, or give max_context={window}"
        )
