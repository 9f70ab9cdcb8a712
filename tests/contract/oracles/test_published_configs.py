"""The ``config.json`` files of well-known published checkpoints and heads are read, every key of them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from oracles.checkpoints.hf_config import parse_config
from oracles.heads.eagle3_config import read_eagle3
from oracles.transformer.config import RopeScaling
from oracles.transformer.eager import Transformer

CONFIGS, HEADS = (
    json.loads((Path(__file__).parent / "configs" / f"{name}.json").read_text(encoding="utf-8"))
    for name in ("published", "heads")
)
# Number of parameters, and what else must come out of the published file.
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "huggyllama/llama-7b": (6_738_415_616, {"max_context": 2048, "kv_heads": 32, "rope_theta": 10000.0}),
    "meta-llama/Llama-2-7b-hf": (6_738_415_616, {"max_context": 4096, "norm_eps": 1e-5, "rope_scaling": None}),
    "meta-llama/Llama-3.1-8B-Instruct": (
        8_030_261_248,
        {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 8192), "rope_theta": 500000.0, "kv_heads": 8},
    ),
    "meta-llama/Llama-3.2-1B": (
        1_235_814_400,
        {"rope_scaling": RopeScaling("llama3", 32.0, 1.0, 4.0, 8192), "head_size": 64},
    ),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": (1_100_048_384, {"kv_heads": 4, "max_context": 2048}),
    "HuggingFaceTB/SmolLM-135M": (134_515_008, {"rope_theta": 10000.0, "tie_embeddings": True}),
    "HuggingFaceTB/SmolLM2-135M-Instruct": (
        134_515_008,
        {"rope_theta": 100000.0, "max_context": 8192, "rope_interleaved": False},
    ),
    "mistralai/Mistral-7B-v0.1": (7_241_732_096, {"sliding_window": 4096, "rope_theta": 10000.0, "kv_heads": 8}),
    "mistralai/Mistral-7B-v0.3": (7_248_023_552, {"sliding_window": None, "rope_theta": 1000000.0}),
    "Qwen/Qwen2-0.5B": (
        494_032_768,
        {"sliding_window": None, "qkv_bias": True, "attn_out_bias": False, "rope_theta": 1000000.0},
    ),
    "Qwen/Qwen2.5-0.5B": (494_032_768, {"sliding_window": None, "qkv_bias": True, "tie_embeddings": True}),
    "Qwen/Qwen3-0.6B": (596_049_920, {"qk_norm": True, "qkv_bias": False, "head_size": 128, "norm_eps": 1e-6}),
    "openai-community/gpt2": (124_439_808, {"positions": "learned", "activation": "gelu_tanh"}),
    "distilbert/distilgpt2": (81_912_576, {"num_layers": 6}),
    "EleutherAI/pythia-70m": (
        70_426_624,
        {"rotary_size": 16, "parallel_residual": True, "activation": "gelu", "tie_embeddings": False},
    ),
    "pythia-70m, saved again by transformers 4.48": (70_426_624, {"rotary_size": 16, "rope_theta": 10000.0}),
    "Qwen3-0.6B, saved again by transformers 4.57": (596_049_920, {"qk_norm": True, "sliding_window": None}),
}


def test_the_context_of_a_linear_scaling_is_the_longer_sequence_that_the_config_names() -> None:
    config = CONFIGS["huggyllama/llama-7b"] | {"rope_scaling": {"type": "linear", "factor": 4.0}}
    assert parse_config(config, "here").config.max_context == 2048
    for named, wanted in ((6000, 6000), (8192, 8192), (9000, 8192), (1024, 2048)):
        assert parse_config(config | {"max_sequence_length": named}, "here").config.max_context == wanted


@pytest.mark.parametrize("name", CONFIGS)
def test_published_configs_are_read(name: str) -> None:
    num_parameters, expected = PUBLISHED[name]
    config = parse_config(CONFIGS[name], name).config
    assert {field: getattr(config, field) for field in expected} == expected
    with torch.device("meta"):
        model = Transformer(config, seed=None)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


# Width, ids and layers of the target, and the layers whose outputs are read.
TARGETS = {
    "EAGLE, Llama-3.1-8B": (4096, 128256, 32, (1, 15, 28)),
    "SpecForge, Llama-3-70B": (8192, 128256, 80, (1, 39, 76)),
    "SpecForge, Qwen3-8B": (4096, 151936, 36, (1, 17, 32)),
    "SpecForge, Qwen3-30B-A3B, 3.1": (2048, 151936, 48, (1, 23, 44)),
    "SpecForge, Qwen3-235B-A22B": (4096, 151936, 94, (1, 46, 90)),
    "SpecForge, Qwen3-Next-80B-A3B": (2048, 151936, 48, (1, 23, 44)),
    "SpecForge, QwQ-32B": (5120, 152064, 64, (1, 31, 60)),
    "SpecForge, Phi-4": (5120, 100352, 40, (1, 19, 36)),
    "SpecForge, Gemma-3-1B": (1152, 262144, 26, (1, 12, 22)),
    "AngelSlim, Qwen3-1.7B": (2048, 151936, 28, (1, 13, 24)),
    "AngelSlim, Qwen2.5-7B": (3584, 152064, 28, (1, 13, 24)),
    "DeepSpec, Qwen3-4B": (2560, 151936, 36, (1, 9, 17, 25, 33)),
}


def test_configs_that_trainers_of_eagle_3_write_are_read() -> None:
    assert HEADS.keys() == TARGETS.keys()
    for name, (width, ids, layers, outputs) in TARGETS.items():
        target: Any = SimpleNamespace(hidden_size=width, vocab_size=ids, embedding_rows=ids, hidden_layers=layers)
        shape = read_eagle3(HEADS[name], name, target, None)
        assert shape.layers.outputs == outputs, name
        assert (shape.config.num_layers, shape.config.qkv_bias, shape.config.sliding_window) == (1, False, None), name
        scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 4096) if name == "SpecForge, Llama-3-70B" else None
        assert shape.config.rope_scaling == scaling, name
