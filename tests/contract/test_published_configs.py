"""The ``config.json`` files of well-known published checkpoints are read, every key of them."""

from typing import Any

import pytest
import torch

from oracles.checkpoints.hf_config import parse_config
from oracles.transformer.config import RopeScaling
from oracles.transformer.eager import Transformer

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "model_type": "llama",
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "use_cache": True,
}
_LLAMA3: dict[str, Any] = _LLAMA | {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
_LLAMA3_SCALING = {
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_SMOLLM: dict[str, Any] = _LLAMA | {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "mlp_bias": False,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
}
_MISTRAL: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
_QWEN: dict[str, Any] = {
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
_QWEN2: dict[str, Any] = _QWEN | {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
}
_GPT2: dict[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
_PYTHIA: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 512,
    "initializer_range": 0.02,
    "intermediate_size": 2048,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}
# Contents of the published file, number of parameters, and what else must come out of it.
PUBLISHED: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "huggyllama/llama-7b": (
        _LLAMA
        | {
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "max_position_embeddings": 2048,
            "max_sequence_length": 2048,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-06,
            "torch_dtype": "float16",
            "transformers_version": "4.28.0.dev0",
            "vocab_size": 32000,
        },
        6_738_415_616,
        {"max_context": 2048, "kv_heads": 32, "rope_theta": 10000.0},
    ),
    "meta-llama/Llama-2-7b-hf": (
        _LLAMA
        | {
            "_name_or_path": "meta-llama/Llama-2-7b-hf",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "max_position_embeddings": 4096,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "torch_dtype": "float16",
            "transformers_version": "4.31.0.dev0",
            "vocab_size": 32000,
        },
        6_738_415_616,
        {"max_context": 4096, "norm_eps": 1e-5, "rope_scaling": None},
    ),
    "meta-llama/Llama-3.1-8B-Instruct": (
        _LLAMA3
        | {
            "eos_token_id": [128001, 128008, 128009],
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "rope_scaling": _LLAMA3_SCALING | {"factor": 8.0},
            "transformers_version": "4.42.3",
        },
        8_030_261_248,
        {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 8192), "rope_theta": 500000.0, "kv_heads": 8},
    ),
    "meta-llama/Llama-3.2-1B": (
        _LLAMA3
        | {
            "eos_token_id": 128001,
            "head_dim": 64,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_hidden_layers": 16,
            "rope_scaling": _LLAMA3_SCALING | {"factor": 32.0},
            "tie_word_embeddings": True,
            "transformers_version": "4.45.0.dev0",
        },
        1_235_814_400,
        {"rope_scaling": RopeScaling("llama3", 32.0, 1.0, 4.0, 8192), "head_size": 64},
    ),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": (
        _LLAMA
        | {
            "attention_bias": False,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "max_position_embeddings": 2048,
            "num_attention_heads": 32,
            "num_hidden_layers": 22,
            "num_key_value_heads": 4,
            "rope_theta": 10000.0,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.35.0",
            "vocab_size": 32000,
        },
        1_100_048_384,
        {"kv_heads": 4, "max_context": 2048},
    ),
    "HuggingFaceTB/SmolLM-135M": (
        _SMOLLM | {"max_position_embeddings": 2048, "rope_theta": 10000.0, "transformers_version": "4.42.3"},
        134_515_008,
        {"rope_theta": 10000.0, "tie_embeddings": True},
    ),
    "HuggingFaceTB/SmolLM2-135M-Instruct": (
        _SMOLLM
        | {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "initializer_range": 0.041666666666666664,
            "is_llama_config": True,
            "max_position_embeddings": 8192,
            "pad_token_id": 2,
            "rope_interleaved": False,
            "rope_theta": 100000,
            "transformers.js_config": {"dtype": "q4", "kv_cache_dtype": {"fp16": "float16", "q4f16": "float16"}},
            "transformers_version": "4.42.3",
        },
        134_515_008,
        {"rope_theta": 100000.0, "max_context": 8192, "rope_interleaved": False},
    ),
    "mistralai/Mistral-7B-v0.1": (
        _MISTRAL
        | {"rope_theta": 10000.0, "sliding_window": 4096, "transformers_version": "4.34.0.dev0", "vocab_size": 32000},
        7_241_732_096,
        {"sliding_window": 4096, "rope_theta": 10000.0, "kv_heads": 8},
    ),
    "mistralai/Mistral-7B-v0.3": (
        _MISTRAL
        | {
            "attention_dropout": 0.0,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "transformers_version": "4.42.0.dev0",
            "vocab_size": 32768,
        },
        7_248_023_552,
        {"sliding_window": None, "rope_theta": 1000000.0},
    ),
    "Qwen/Qwen2-0.5B": (
        _QWEN2 | {"max_position_embeddings": 131072, "sliding_window": 131072, "transformers_version": "4.40.1"},
        494_032_768,
        {"sliding_window": None, "qkv_bias": True, "attn_out_bias": False, "rope_theta": 1000000.0},
    ),
    "Qwen/Qwen2.5-0.5B": (
        _QWEN2
        | {
            "max_position_embeddings": 32768,
            "sliding_window": 32768,
            "transformers_version": "4.40.1",
            "use_mrope": False,
        },
        494_032_768,
        {"sliding_window": None, "qkv_bias": True, "tie_embeddings": True},
    ),
    "Qwen/Qwen3-0.6B": (
        _QWEN
        | {
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "eos_token_id": 151645,
            "head_dim": 128,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "max_position_embeddings": 40960,
            "max_window_layers": 28,
            "model_type": "qwen3",
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "num_key_value_heads": 8,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": None,
            "transformers_version": "4.51.0",
        },
        596_049_920,
        {"qk_norm": True, "qkv_bias": False, "head_size": 128, "norm_eps": 1e-6},
    ),
    "openai-community/gpt2": (_GPT2, 124_439_808, {"positions": "learned", "activation": "gelu_tanh"}),
    "distilbert/distilgpt2": (
        _GPT2
        | {
            "_num_labels": 1,
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "n_layer": 6,
        },
        81_912_576,
        {"num_layers": 6},
    ),
    "EleutherAI/pythia-70m": (
        _PYTHIA | {"torch_dtype": "float16", "transformers_version": "4.24.0"},
        70_426_624,
        {"rotary_size": 16, "parallel_residual": True, "activation": "gelu", "tie_embeddings": False},
    ),
    "pythia-70m, saved again by transformers 4.48": (
        _PYTHIA
        | {
            "_name_or_path": "EleutherAI/pythia-70m",
            "attention_bias": True,
            "attention_dropout": 0.0,
            "classifier_dropout": 0.1,
            "hidden_dropout": 0.0,
            "partial_rotary_factor": 0.25,
            "rope_scaling": None,
            "rope_theta": 10000,
            "torch_dtype": "float32",
            "transformers_version": "4.48.0",
        },
        70_426_624,
        {"rotary_size": 16, "rope_theta": 10000.0},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read(name: str) -> None:
    values, num_parameters, expected = PUBLISHED[name]
    config = parse_config(values, name).config
    assert {field: getattr(config, field) for field in expected} == expected
    with torch.device("meta"):
        model = Transformer(config, seed=None)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
