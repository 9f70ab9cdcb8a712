"""GGUF files of tiny models, written by the package ``gguf``."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import pre_tokenizers
from torch import Tensor

from oracles import Transformer, TransformerConfig
from tests.support.models.tiny_models import tiny_unpacked

Kind = gguf.GGMLQuantizationType
SIZES = {
    "vocab_size": 288, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32,
    "intermediate_size": 96, "max_context": 128, "norm_eps": 1e-5, "rope_theta": 5000.0,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {"llama": {}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}}
INNER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
# Of the K types: where float16 numbers stand in a block, and how large they are in weights of about 0.1.
K_HALVES = {Kind.Q4_K: {0: 5e-4, 2: 3.75e-3}, Kind.Q5_K: {0: 2.5e-4, 2: 3.75e-3}, Kind.Q6_K: {208: 1e-4}}
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
MERGES = ["Ġ t", "h e", "Ġt he", "1 2", "12 3", "123 4", "i n", "in g", "a n", "; }", "Ġ Ġ"]
SPECIAL = {"<|end|>": CONTROL, "<|turn|>": CONTROL, "<|begin|>": CONTROL, "<tool>": USER_DEFINED}
CHARACTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
# Of no merge comes the last one, which is met where pieces that are tokens are taken whole.
TOKENS = [*SPECIAL, *CHARACTERS, *(merge.replace(" ", "") for merge in MERGES), "Ġthen"]
KINDS = [*SPECIAL.values(), *[1] * (len(TOKENS) - len(SPECIAL))]


def family_model(family: str, seed: int = 0, **changes: Any) -> Transformer:
    """Return a small float32 model of an architecture, whose norms and biases matter."""
    model = tiny_unpacked(dtype=torch.float32, seed=seed, **SIZES | FAMILIES[family] | changes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
            elif parameter.ndim == 2:
                parameter.mul_(0.3)
    return model


def stored_name(name: str) -> str:
    """Return what ggml calls a parameter."""
    module, kind = name.rsplit(".", 1)
    if module in OUTER:
        return f"{OUTER[module]}.{kind}"
    _, _, layer, inner = module.split(".", 3)
    return f"blk.{layer}.{INNER[inner]}.{kind}"


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Return rows of queries or keys as the architecture "llama" stores them: rotary pairs as neighbours."""
    rows = [
        head * (size := len(values) // heads) + pair + half * (size // 2)
        for head in range(heads)
        for pair in range(len(values) // heads // 2)
        for half in (0, 1)
    ]
    return values[rows]


def keys_of(config: TransformerConfig) -> dict[str, Any]:
    """Return an architecture's keys."""
    return {
        "context_length": config.max_context, "embedding_length": config.hidden_size,
        "block_count": config.num_layers, "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads, "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_size, "attention.value_length": config.head_size,
        "attention.layer_norm_rms_epsilon": config.norm_eps, "rope.freq_base": config.rope_theta,
        "rope.dimension_count": config.head_size,
    }  # fmt: skip


def tokenizer_keys(label: str | None = "smollm", rows: int = SIZES["vocab_size"], **changes: Any) -> dict[str, Any]:
    """Return the keys of a small byte-level tokenizer, padded to the rows of an embedding; None leaves a key out."""
    padding = range(len(TOKENS), rows)
    keys = {
        "model": "gpt2", "pre": label, "tokens": [*TOKENS, *(f"[PAD{i}]" for i in padding)], "merges": MERGES,
        "token_type": [*KINDS, *[UNUSED] * len(padding)], "bos_token_id": 2, "eos_token_id": 0, "eot_token_id": 1,
        "add_bos_token": False, "add_space_prefix": False, "padding_token_id": 0,
    }  # fmt: skip
    return {name: value for name, value in (keys | changes).items() if value is not None}


def by_kind(kind: Kind | Callable[[str], Kind]) -> Callable[[str], Kind]:
    return kind if callable(kind) else lambda name: kind


def write_gguf(
    path: Path,
    model: Transformer,
    family: str = "llama",
    kind: Kind | Callable[[str], Kind] = Kind.F32,
    keys: Mapping[str, Any] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    general: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    left_out: Sequence[str] = (),
) -> Path:
    """Write a model and return the path.

    Args:
        path: of the file.
        model: unpacked; it becomes what the file holds, so that its logits are those to expect.
        family: the architecture.
        kind: of matrices, or what says it by a stored name; vectors are float32.
        keys: of the architecture, in place of or beside the model's own; None leaves one out.
        tokenizer: keys after "tokenizer.ggml."; None: no tokenizer.
        general: other keys, by their full names.
        extra: further tensors.
        left_out: stored names.
    """
    writer = gguf.GGUFWriter(path, family)
    for name, value in (keys_of(model.config) | dict(keys or {})).items():
        if value is not None:
            add_key(writer, f"{family}.{name}", value)
    for name, value in (tokenizer or {"model": "no_vocab"}).items():
        add_key(writer, f"tokenizer.ggml.{name}", value)
    for name, value in (general or {}).items():
        add_key(writer, name, value)
    for name, parameter in model.named_parameters():
        if (stored := stored_name(name)) not in left_out:
            add_parameter(writer, stored, parameter, by_kind(kind)(stored), model.config if family == "llama" else None)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_key(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    """Add a key of the type that Python's value has."""
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value) if value >= 0 else writer.add_int32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)


@torch.no_grad()
def add_parameter(
    writer: gguf.GGUFWriter, stored: str, parameter: Tensor, kind: Kind, config: TransformerConfig | None
) -> None:
    """Add a parameter, which becomes what is stored; ``config`` if rows of queries and keys are permuted."""
    kind = kind if parameter.ndim == 2 else Kind.F32
    rows = stored_rows(parameter.numpy(), kind)
    parameter.copy_(torch.from_numpy(gguf.dequantize(rows, kind).reshape(parameter.shape)))
    heads = {} if config is None else {"attn_q": config.num_heads, "attn_k": config.kv_heads}
    inner = stored.split(".")[-2]
    in_order = permuted(rows, heads[inner]) if inner in heads else rows
    writer.add_tensor(stored, np.ascontiguousarray(in_order), raw_dtype=kind)


def stored_rows(values: np.ndarray, kind: Kind) -> np.ndarray:
    """Return rows as a type stores them; of the K types, which the package cannot write, random ones of that size."""
    if kind not in K_HALVES:
        return gguf.quantize(np.ascontiguousarray(values), kind)
    generator = np.random.default_rng(values.size)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (len(values), values.shape[1] // block, size), np.uint8)
    for at, largest in K_HALVES[kind].items():
        halves = generator.uniform(0.5 * largest, largest, blocks.shape[:2]).astype("<f2")
        blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(len(values), -1)
