"""Write a trained model as a Hugging Face directory: bfloat16 safetensors in small shards, no pickle."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import Tensor, nn

from oracles.checkpoints.config_keys import read_json
from oracles.checkpoints.hf_config import CheckpointShape
from oracles.checkpoints.tensor_names import places
from oracles.checkpoints.tokenization import END_OF_TEXT
from oracles.checkpoints.weights import INDEX, SINGLE, StoredTensors
from oracles.transformer.config import TransformerConfig
from oracles.transformer.draft_vocabulary import OFFSETS, WRITTEN, ProjectedHead, read_written_ids
from oracles.transformer.eager import Transformer
from specdec.system import write_whole

MAX_SHARD_BYTES = 14 * 2**20
# What a head's folder may hold besides trained weights: ids that it writes, and copies of the oracle's tables.
_NOT_TRAINED = {OFFSETS, WRITTEN, "embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight"}
_SAME = "give the options that the folder was trained with"


def llama_config(config: TransformerConfig) -> dict[str, Any]:
    """Return the ``config.json`` of a model of Llama's kind."""
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
    }


def _gpt2_config(config: TransformerConfig) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.max_context,
        "n_embd": config.hidden_size,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_inner": config.intermediate_size,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _gpt2_tensors(state: dict[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Return the weights under GPT-2's names, its linear layers as ``[in, out]``, queries, keys and values in one."""
    shape = CheckpointShape("gpt2", config, config.max_context)
    parts = defaultdict(list)
    for name, place in places(shape, state, ["transformer."]).items():
        parts[place.key].append(state[name].t() if name.endswith("_proj.weight") else state[name])
    return {key: torch.cat(tensors, dim=-1) for key, tensors in parts.items()}


def shard(tensors: dict[str, Tensor], max_bytes: int = MAX_SHARD_BYTES) -> list[dict[str, Tensor]]:
    """Return tensors ``[...]`` by name, in order, cut into groups of at most ``max_bytes``.

    A larger tensor is a group by itself.
    """
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > max_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def _weight_files(tensors: dict[str, Tensor]) -> dict[str, bytes | str]:
    """Return the contents of the weight files, by name; with several shards, an index comes last."""
    shards = shard(tensors)
    many = [f"model-{index:05}-of-{len(shards):05}.safetensors" for index in range(1, len(shards) + 1)]
    names = [SINGLE] if len(shards) == 1 else many
    files: dict[str, bytes | str] = {
        name: save(part, metadata={"format": "pt"}) for name, part in zip(names, shards, strict=True)
    }
    if len(shards) > 1:
        weight_map = {key: name for name, part in zip(names, shards, strict=True) for key in part}
        total = sum(tensor.nbytes for tensor in tensors.values())
        files[INDEX] = _json({"metadata": {"total_size": total}, "weight_map": weight_map})
    return files


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"


def export_checkpoint(state: dict[str, Tensor], config: TransformerConfig, tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``config.json``, bfloat16 weights, ``tokenizer.json`` and ``generation_config.json``.

    A model with learned positions is written as GPT-2, every other one as Llama.

    Args:
        state: weights under Hugging Face's Llama names, linear ones ``[out, in]``; without a head if embeddings are
            tied.
        config: shape of the model.
        tokenizer: its ``END_OF_TEXT``, if it has one, ends a text and precedes every text.
        folder: made if absent; old weights in it are removed.
    """
    is_gpt2 = config.positions == "learned"
    tensors = _gpt2_tensors(state, config) if is_gpt2 else state
    values = _gpt2_config(config) if is_gpt2 else llama_config(config)
    end = tokenizer.token_to_id(END_OF_TEXT)
    ends = {"bos_token_id": end, "eos_token_id": end}
    save_folder(tensors, {**values, **ends}, folder)
    write_whole(folder / "generation_config.json", _json(ends))
    write_whole(folder / "tokenizer.json", tokenizer.to_str(pretty=True))


def export_draft(model: Transformer, vocabulary_of: str, folder: Path) -> None:
    """Write ``config.json`` and bfloat16 weights of a draft that reads another checkpoint's vocabulary.

    Args:
        model: has a ``ProjectedEmbedding`` and a ``ProjectedHead``.
        vocabulary_of: the checkpoint's name or path, as ``oracles.load`` takes it.
        folder: made if absent; old weights in it are removed.
    """
    head = model.lm_head
    assert isinstance(head, ProjectedHead)
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    values = llama_config(model.config) | {"draft_vocab_size": len(head.target_ids), "vocabulary_of": vocabulary_of}
    save_folder(tensors | {OFFSETS: head.offsets}, values, folder)


def save_folder(tensors: dict[str, Tensor], values: dict[str, Any], folder: Path) -> None:
    """Write tensors ``[...]`` by name, floats as bfloat16, and a ``config.json``; then remove old weights."""
    kept = {name: tensors[name].cpu() for name in sorted(tensors)}
    halves = {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in kept.items()}
    files = _weight_files({name: tensor.contiguous() for name, tensor in halves.items()})
    files["config.json"] = _json({**values, "torch_dtype": "bfloat16"})
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_whole(folder / name, content)
    # Indices first: without their files they would keep a folder from loading.
    for old in (*folder.glob("*.index.json"), *folder.glob("*.safetensors")):
        if old.name not in files:
            old.unlink()


@torch.no_grad()
def take_weights(network: nn.Module, folder: Path, stored_name: Callable[[str], str] = str) -> None:
    """Fill a network with the weights of a finished one of its shape.

    Args:
        network: in training form.
        folder: of ``save_folder``.
        stored_name: returns a parameter's name there.

    Raises:
        ValueError: a tensor is missing, has another shape, or has no place in the network.
    """
    stored, names = StoredTensors(folder), {stored_name(name): name for name, _ in network.named_parameters()}
    for key, name in names.items():
        parameter, shape = network.get_parameter(name), stored.shapes.get(key)
        if shape != parameter.shape:
            found = "missing" if shape is None else f"of shape {tuple(shape)}"
            raise ValueError(
                f"{folder}: tensor {key!r} is {found}, and training wants {tuple(parameter.shape)}: {_SAME}"
            )
        parameter.copy_(stored.take(key))
    if others := sorted(stored.shapes.keys() - names.keys() - _NOT_TRAINED):
        raise ValueError(f"{folder}: tensor {others[0]!r} has no place in what is trained: {_SAME}")


def check_meaning(folder: Path, meaning: Mapping[str, Any]) -> None:
    """Check that the weights of a finished head mean what those of one in training do.

    Args:
        folder: of ``save_folder``.
        meaning: keys of the ``config.json`` that training would write, and what it says there.

    Raises:
        ValueError: there is no config, or it says something else under one of the keys.
    """
    path = folder / "config.json"
    if not path.exists():
        raise ValueError(f"{path} does not exist: give the folder of a finished head")
    found = read_json(path)
    for key, own in meaning.items():
        if key in found and found[key] != own:
            raise ValueError(
                f"{path}: {key} is {found[key]}, and training has {own}: {_SAME}, such as --mask-id or "
                "--layers, which counts from 0 whatever the config does"
            )


def read_target_ids(folder: Path, vocab_size: int) -> Tensor | None:
    """Return the ids ``[R]`` below ``vocab_size`` that a finished head or draft writes; None: all.

    Raises:
        ValueError: its offsets give none.
    """
    stored = StoredTensors(folder)
    if OFFSETS not in stored.shapes:
        return None
    return read_written_ids(stored, math.prod(stored.shapes[OFFSETS]), vocab_size)
