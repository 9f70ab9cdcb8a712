"""Tiny EAGLE-3 checkpoints in the names and layouts in which they are published, and heads of them."""

import json
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from oracles import load_head
from oracles.heads.eagle3_loading import LoadedEagle3
from specdec.contracts import DraftSource, Oracle
from tests.reference.eagle3 import Eagle3

SIZE, INNER, HEADS, KV_HEADS = 16, 24, 4, 2


@dataclass
class Layout:
    """What a checkpoint is like.

    Attributes:
        style: "official" (its authors), "specforge", "speculators", "vllm" or "deepspec".
        ids: layers as the config numbers them; None: it does not.
        written: the ids that its head writes; None: all.
        own_embedding, own_head: whether the tensors are there.
        fc_norm: "fc_norm" or "fcs", as the norms of the features are called; None: there are none.
        model_type: of the layer: "llama" or "qwen3".
        flags: further keys of the head in the config.
        layer: further keys of the layer in the config.
    """

    style: str = "official"
    ids: tuple[int, ...] | None = None
    written: tuple[int, ...] | None = None
    own_embedding: bool = True
    own_head: bool = True
    fc_norm: str | None = None
    model_type: str = "llama"
    flags: dict[str, Any] = field(default_factory=dict)
    layer: dict[str, Any] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        return "midlayer" if self.style in ("official", "specforge") else "layers.0"


# One of each kind that is published, and of what their configs may say.
CLASSES = {
    "official": "LlamaForCausalLM",
    "specforge": "LlamaForCausalLMEagle3",
    "vllm": "Eagle3LlamaForCausalLM",
    "deepspec": "Qwen3Eagle3Model",
}
LAYOUTS = {
    "official": Layout(),
    "official, few ids": Layout(written=(7, 0, 10, 2, 3), layer={"num_hidden_layers": 40}),
    "official, borrowed": Layout(own_embedding=False, own_head=False),
    "specforge": Layout(
        "specforge",
        ids=(0, 3, 4),
        own_embedding=False,
        written=(1, 4, 5, 9),
        layer={"max_window_layers": 36, "sliding_window": 2, "use_sliding_window": False, "decoder_sparse_step": 1},
    ),
    "3.1": Layout("specforge", fc_norm="fc_norm", flags={"norm_output": True}),
    "3.1, fed back as it was": Layout("specforge", fc_norm="fc_norm"),
    "3.1, other names": Layout("specforge", fc_norm="fcs", flags={"norm_output": True}, own_head=False),
    "speculators": Layout(
        "speculators",
        written=(0, 1, 6, 8),
        flags={"norm_before_residual": True},
        layer={"layer_types": ["sliding_attention"], "sliding_window": 4, "use_sliding_window": True},
    ),
    "speculators, normed before": Layout(
        "speculators", ids=(1, 5), flags={"norm_before_fc": True, "norm_output": True}
    ),
    "speculators, qwen3": Layout(
        "speculators",
        model_type="qwen3",
        layer={"head_dim": 6, "layer_types": ["sliding_attention"], "sliding_window": 3, "use_sliding_window": True},
    ),
    "biases, wide heads": Layout(
        "deepspec", ids=(0, 1, 2, 4), model_type="qwen3", layer={"attention_bias": True, "head_dim": 8}
    ),
    "a narrower head": Layout("vllm", layer={"hidden_size": 12, "head_dim": 4, "attention_bias": True}),
    "rope parameters, beyond its context": Layout(
        "speculators",
        layer={
            "max_position_embeddings": 8,
            "rope_theta": None,
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
        },
    ),
}


def tensors_of(layout: Layout, oracle: Any, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, from whole numbers that are the same on every machine."""
    size, dim = layout.layer.get("hidden_size", SIZE), layout.layer.get("head_dim", SIZE // HEADS)
    count, rows = len(layout.ids or (0, 0, 0)), oracle.embedding_rows
    wide = count * oracle.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (size, wide), "norm.weight": (size,)}
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        shapes[f"{layout.prefix}.{name}.weight"] = (size,)
    for name, out in (("q", HEADS * dim), ("k", KV_HEADS * dim), ("v", KV_HEADS * dim)):
        shapes[f"{layout.prefix}.self_attn.{name}_proj.weight"] = (out, 2 * size)
    if layout.layer.get("attention_bias"):
        for name, out in (("q", HEADS * dim), ("k", KV_HEADS * dim), ("v", KV_HEADS * dim), ("o", size)):
            shapes[f"{layout.prefix}.self_attn.{name}_proj.bias"] = (out,)
    shapes[f"{layout.prefix}.self_attn.o_proj.weight"] = (size, HEADS * dim)
    if layout.model_type == "qwen3":
        shapes |= {f"{layout.prefix}.self_attn.{name}_norm.weight": (dim,) for name in "qk"}
    for name, shape in (("gate", (INNER, size)), ("up", (INNER, size)), ("down", (size, INNER))):
        shapes[f"{layout.prefix}.mlp.{name}_proj.weight"] = shape
    if layout.fc_norm is not None:
        shapes |= {f"{layout.fc_norm}.{i}.weight": (oracle.hidden_size,) for i in range(count)}
    if layout.flags.get("norm_before_fc"):
        shapes["input_norm.weight"] = (wide,)
    if layout.own_embedding:
        shapes["embed_tokens.weight"] = (rows, size)
    if layout.own_head:
        shapes["lm_head.weight"] = (rows if layout.written is None else len(layout.written), size)
    tensors = {name: _numbers(seed + i, shape, "norm" in name, dtype) for i, (name, shape) in enumerate(shapes.items())}
    for name in tensors:
        if name.startswith("fcs."):
            tensors[name] = 1 + tensors[name] / 2
    if layout.written is not None:
        ids = torch.tensor(layout.written)
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(rows, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def _numbers(seed: int, shape: tuple[int, ...], is_norm: bool, dtype: torch.dtype) -> Tensor:
    raw = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    values = torch.from_numpy(((raw >> 11) % 2048).astype(np.float64).reshape(shape) - 1024) / 1024
    return (1 + values / 4 if is_norm else values).to(dtype)


def config_of(layout: Layout, oracle: Any) -> dict[str, Any]:
    """Return the ``config.json`` of a checkpoint."""
    layer: dict[str, Any] = {
        "model_type": layout.model_type, "hidden_size": SIZE, "intermediate_size": INNER, "num_hidden_layers": 1,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "vocab_size": oracle.embedding_rows, "rope_theta": 5000.0,
    }  # fmt: skip
    if layout.model_type == "qwen3":
        layer["head_dim"] = SIZE // HEADS
    layer |= layout.layer
    written = oracle.embedding_rows if layout.written is None else len(layout.written)
    flags = {"draft_vocab_size": written, **layout.flags}
    if layout.fc_norm is not None:
        flags["fc_norm"] = True
    if oracle.hidden_size != layer["hidden_size"]:
        flags["target_hidden_size"] = oracle.hidden_size
    if layout.style == "speculators":
        verifier = {"name_or_path": "somewhere/a-model", "architectures": ["LlamaForCausalLM"]}
        proposals = [{"proposal_type": "greedy", "speculative_tokens": 3}]
        return {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "model_type": "speculators",
            "speculators_config": {"algorithm": "eagle3", "proposal_methods": proposals, "verifier": verifier},
            "transformer_layer_config": layer, **flags,
            **({} if layout.ids is None else {"eagle_aux_hidden_state_layer_ids": list(layout.ids)}),
        }  # fmt: skip
    told: dict[str, Any] = {"architectures": [CLASSES[layout.style]], **layer, **flags}
    named = {} if layout.ids is None else {"eagle_aux_hidden_state_layer_ids": list(layout.ids)}
    if layout.style == "vllm":
        told |= named
    if layout.style == "specforge":
        told["eagle_config"] = {
            "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True,
            "use_mtp_layernorm": False, "next_layer_regular": True, "parallel_draft_step": None, **named,
        }  # fmt: skip
    if layout.style == "deepspec":
        del told["draft_vocab_size"]
        told |= {"target_layer_ids": list(layout.ids or ()), "ttt_length": 7, "num_target_layers": oracle.num_layers}
    return told


def write_head(
    folder: Path, oracle: Any, layout: Layout, seed: int = 0, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Write a checkpoint, and return its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = tensors_of(layout, oracle, seed, dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config_of(layout, oracle)))
    return tensors


def reference_of(layout: Layout, tensors: dict[str, Tensor], oracle: Any) -> Eagle3:
    """Return the slow head of the same tensors; what it has none of is taken from an unpacked oracle."""
    names = {name: name.replace(layout.prefix, "midlayer").replace("fcs.", "fc_norm.") for name in tensors}
    weights = {names[name]: value.double().numpy() for name, value in tensors.items() if name not in ("d2t", "t2d")}
    if not layout.own_embedding:
        weights["embed_tokens.weight"] = oracle.model.embed_tokens.weight.detach().double().numpy()
    if not layout.own_head:
        weights["lm_head.weight"] = oracle.lm_head.weight.detach().double().numpy()
    size, dim = layout.layer.get("hidden_size", SIZE), layout.layer.get("head_dim", SIZE // HEADS)
    return Eagle3(
        weights, oracle.vocab_size, HEADS, KV_HEADS, dim if size else 0, 1e-5, layout.layer.get("rope_theta") or 5000.0,
        num_layers_read=len(layout.ids or (0, 0, 0)),
        target_ids=None if layout.written is None else list(layout.written),
        norm_before_residual=bool(layout.flags.get("norm_before_residual")),
        norm_output=bool(layout.flags.get("norm_output")),
        window=layout.layer["sliding_window"] if "layer_types" in layout.layer else None,
        stretch=layout.layer.get("rope_parameters", {}).get("factor", 1.0),
    )  # fmt: skip


@cache
def tiny_eagle3(oracle: Any, seed: int = 0) -> LoadedEagle3:
    """Return a head whose laws are far from uniform, which reads the first two layers of an oracle."""
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout("specforge", ids=(0, 1, 1))
        write_head(Path(folder), oracle, layout, 100 * seed)
        head = load_head(folder, oracle, aux_layers="outputs")
    assert isinstance(head, LoadedEagle3)
    return head


def host_of(source: DraftSource, otherwise: Any) -> Oracle:
    """Return the oracle to decode with: on whose cache a source drafts, or whose hidden states its heads read."""
    if source.needs.cache_of is not None:
        return source.needs.cache_of
    sources = [source]
    for one in sources:
        sources += getattr(one, "members", ())
    hosts = [one.head.oracle for one in sources if one.needs.hidden and hasattr(one, "head")]  # type: ignore[attr-defined]
    return hosts[0] if hosts else otherwise
