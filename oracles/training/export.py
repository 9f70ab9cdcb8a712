"""Write a trained model as a Hugging Face directory: bfloat16 safetensors in small shards, no pickle."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from oracles.config import TransformerConfig
from oracles.tokenization import end_of_text_id

MAX_SHARD_BYTES = 14 * 2**20


def llama_config(config: TransformerConfig, end_id: int) -> dict[str, Any]:
    """Return the ``config.json`` of a Llama-shaped model.

    Args:
        config: its shape; the activation is SwiGLU, the norm a root mean square, positions are rotary.
        end_id: id of the end-of-text token, which also stands before every text.
    """
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": end_id,
        "eos_token_id": end_id,
        "torch_dtype": "bfloat16",
    }


def shard(tensors: dict[str, Tensor], max_bytes: int = MAX_SHARD_BYTES) -> list[dict[str, Tensor]]:
    """Return the tensors in order, cut into groups of at most ``max_bytes`` (a larger tensor stands alone)."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > max_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def _save_weights(tensors: dict[str, Tensor], folder: Path) -> None:
    shards = shard(tensors)
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for index, part in enumerate(shards, start=1):
        name = f"model-{index:05}-of-{len(shards):05}.safetensors"
        save_file(part, folder / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, name))
    total = sum(tensor.nbytes for tensor in tensors.values())
    _save_json({"metadata": {"total_size": total}, "weight_map": weight_map}, folder / "model.safetensors.index.json")


def _save_json(content: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def export_llama(state: dict[str, Tensor], config: TransformerConfig, tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``config.json``, bfloat16 weights, ``tokenizer.json`` and ``generation_config.json``.

    Args:
        state: weights under Hugging Face's Llama names, without a head where embeddings are tied.
        config: shape of the model.
        tokenizer: has ``END_OF_TEXT``.
        folder: made where absent; old weights in it are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.safetensors"), *folder.glob("*.index.json")):
        old.unlink()
    end_id = end_of_text_id(tokenizer)
    _save_weights({name: state[name].to("cpu", torch.bfloat16).contiguous() for name in sorted(state)}, folder)
    _save_json(llama_config(config, end_id), folder / "config.json")
    _save_json({"bos_token_id": end_id, "eos_token_id": end_id}, folder / "generation_config.json")
    tokenizer.save(str(folder / "tokenizer.json"))
