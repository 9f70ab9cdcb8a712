"""Tiny random models of the ``transformers`` library."""

from collections.abc import Callable
from typing import Any

import torch
import transformers

SIZES = {
    "vocab_size": 23, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": None,
}  # fmt: skip
GPT2 = {
    "vocab_size": 23, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "bos_token_id": 1,
    "eos_token_id": None,
}  # fmt: skip
GEMMA = {"head_dim": 8, "sliding_window": 5, "attn_implementation": "eager"}
# Per family: its configuration, and what it is beside the sizes.
FAMILIES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {}),
    "llama, eager": (transformers.LlamaConfig, {"attn_implementation": "eager"}),
    "mistral": (transformers.MistralConfig, {"sliding_window": 5}),
    "qwen2": (
        transformers.Qwen2Config, {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "gemma2": (
        transformers.Gemma2Config, {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (transformers.Gemma3TextConfig, {**GEMMA, "sliding_window_pattern": 2}),
    "phi": (transformers.PhiConfig, {}),
    "phi3": (transformers.Phi3Config, {"sliding_window": 5}),
    "olmo": (transformers.OlmoConfig, {"clip_qkv": 2.0}),
    "olmo2": (transformers.Olmo2Config, {}),
    "olmo3": (transformers.Olmo3Config, {"sliding_window": 5}),
    "mixtral": (transformers.MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "neox": (transformers.GPTNeoXConfig, {}),
    "gpt2": (transformers.GPT2Config, GPT2),
}  # fmt: skip


def random_model(family: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Return a model of that family, in evaluation mode, whose every weight matters."""
    make, own = FAMILIES[family]
    options = {**({} if own is GPT2 else SIZES), **own, **changes}
    attention = options.pop("attn_implementation", "sdpa")
    config = make(**options)
    torch.manual_seed(seed)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_scale = ("norm" in name or "ln_" in name) and name.endswith("weight")
            parameter.copy_(1 + 0.3 * noise if is_scale else 0.3 * noise)
    return model.eval()
