"""Tiny transformers with laws that are far from uniform."""

import torch

from oracles import Transformer, TransformerConfig
from tests.support.backends import pack_eagerly


def tiny_unpacked(vocab_size: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0, **options) -> Transformer:
    """Return a two-layer transformer of the Llama family (or as ``options`` say) with large random weights."""
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 24}
    config = TransformerConfig(**{"vocab_size": vocab_size, "max_context": 64, **sizes, **options})
    model = Transformer(config, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0.0, 0.5, generator=generator)
    return model.to(dtype).eval()


def tiny_transformer(
    vocab_size: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0, pack=pack_eagerly, **options
) -> Transformer:
    """Return the transformer of ``tiny_unpacked``, packed; only in float32 does a result say "exact"."""
    return pack(tiny_unpacked(vocab_size, dtype, seed, **options))


def rough_view(
    vocab_size: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0, pack=pack_eagerly, **options
) -> Transformer:
    """Return the transformer of ``tiny_transformer`` with weights rounded to halves: a view of it with other laws."""
    model = tiny_unpacked(vocab_size, dtype, seed, **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(2).round_().div_(2)
    return pack(model)


FAMILIES = {
    "llama": {},
    "mistral": {"sliding_window": 5},
    "qwen2": {"qkv_bias": True, "tie_embeddings": True},
    "qwen3": {"qk_norm": True, "head_dim": 12},
    "gpt2": {
        "positions": "learned", "norm": "layer", "gated": False, "activation": "gelu", "num_kv_heads": 4,
        "qkv_bias": True, "attn_out_bias": True, "mlp_bias": True, "tie_embeddings": True,
    },
    "neox": {
        "norm": "layer", "gated": False, "activation": "gelu", "num_kv_heads": 4, "qkv_bias": True,
        "attn_out_bias": True, "mlp_bias": True, "rope_dim": 4, "parallel_residual": True,
    },
    "multi-query": {"num_kv_heads": 1, "rope_interleaved": True},
}  # fmt: skip


def small_model(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: object) -> Transformer:
    """Return a two-layer model whose every weight matters."""
    shape = {
        "vocab_size": 23, "hidden_size": 32, "intermediate_size": 48, "num_layers": 2, "num_heads": 4,
        "num_kv_heads": 2, "max_context": 256,
    }  # fmt: skip
    model = Transformer(TransformerConfig(**(shape | changes)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name and name.endswith("weight") else 0.3 * noise)
    return model.to(dtype)
