"""Where a published checkpoint stores each of our parameters, and in which layout."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from oracles.checkpoints.hf_config import CheckpointShape

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How a native parameter lies in a stored tensor.

    Attributes:
        stored_shape: shape of the stored tensor, given that of the parameter.
        take: returns the parameter from the stored tensor.
    """

    stored_shape: Callable[[Shape], Shape]
    take: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Place:
    """A stored tensor's name, and the layout of the parameter in it."""

    key: str
    layout: Layout


PLAIN = Layout(lambda shape: shape, lambda stored: stored)
# GPT-2's Conv1D keeps [in, out].
TRANSPOSED = Layout(lambda shape: shape[::-1], lambda stored: stored.t())


def _third_of_columns(index: int) -> Layout:
    """Return the layout of queries, keys or values side by side: ``[in, 3 * out]``, or a bias ``[3 * out]``."""
    return Layout(
        lambda shape: (*shape[:0:-1], 3 * shape[0]),
        lambda stored: stored.chunk(3, dim=-1)[index].t(),
    )


def _third_of_heads(index: int, num_heads: int) -> Layout:
    """Return the layout of queries, keys or values head by head: ``[heads * 3 * head_size]`` (+ ``[in]``)."""
    return Layout(
        lambda shape: (3 * shape[0], *shape[1:]),
        lambda stored: stored.reshape(num_heads, 3, -1, *stored.shape[1:])[:, index].flatten(0, 1),
    )


def _neighbouring_pairs(num_heads: int) -> Layout:
    """Return the layout of queries or keys whose rotary pairs are neighbours: ``[heads * pairs * 2]`` (+ ``[in]``)."""
    return Layout(
        lambda shape: shape,
        lambda stored: stored.reshape(num_heads, -1, 2, *stored.shape[1:]).transpose(1, 2).flatten(0, 2),
    )


def first_rows(count: int, stored_rows: int) -> Layout:
    """Return the layout of a table that keeps only the first ``count`` of ``stored_rows`` rows."""
    return Layout(lambda shape: (stored_rows, *shape[1:]), lambda stored: stored[:count])


def _gpt2_layouts(checkpoint: CheckpointShape) -> dict[str, Place]:
    positions = first_rows(checkpoint.config.max_context, checkpoint.stored_positions)
    return {
        "model.embed_tokens": Place("wte", PLAIN),
        "model.embed_positions": Place("wpe", positions),
        "model.norm": Place("ln_f", PLAIN),
        "input_layernorm": Place("ln_1", PLAIN),
        "post_attention_layernorm": Place("ln_2", PLAIN),
        "self_attn.q_proj": Place("attn.c_attn", _third_of_columns(0)),
        "self_attn.k_proj": Place("attn.c_attn", _third_of_columns(1)),
        "self_attn.v_proj": Place("attn.c_attn", _third_of_columns(2)),
        "self_attn.o_proj": Place("attn.c_proj", TRANSPOSED),
        "mlp.up_proj": Place("mlp.c_fc", TRANSPOSED),
        "mlp.down_proj": Place("mlp.c_proj", TRANSPOSED),
    }


def _gpt_neox_layouts(checkpoint: CheckpointShape) -> dict[str, Place]:
    fused = "attention.query_key_value"
    heads = checkpoint.config.num_heads
    return {
        "model.embed_tokens": Place("embed_in", PLAIN),
        "model.norm": Place("final_layer_norm", PLAIN),
        "input_layernorm": Place("input_layernorm", PLAIN),
        "post_attention_layernorm": Place("post_attention_layernorm", PLAIN),
        "self_attn.q_proj": Place(fused, _third_of_heads(0, heads)),
        "self_attn.k_proj": Place(fused, _third_of_heads(1, heads)),
        "self_attn.v_proj": Place(fused, _third_of_heads(2, heads)),
        "self_attn.o_proj": Place("attention.dense", PLAIN),
        "mlp.up_proj": Place("mlp.dense_h_to_4h", PLAIN),
        "mlp.down_proj": Place("mlp.dense_4h_to_h", PLAIN),
    }


def _gguf_layouts(checkpoint: CheckpointShape) -> dict[str, Place]:
    keys = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    return {name: Place(key, PLAIN) for name, key in keys.items()}


def _gguf_llama_layouts(checkpoint: CheckpointShape) -> dict[str, Place]:
    return _gguf_layouts(checkpoint) | {
        "self_attn.q_proj": Place("attn_q", _neighbouring_pairs(checkpoint.config.num_heads)),
        "self_attn.k_proj": Place("attn_k", _neighbouring_pairs(checkpoint.config.kv_heads)),
    }


@dataclass(frozen=True)
class Naming:
    """The tensor names of a family of checkpoints.

    Attributes:
        base: prefix of everything but the head.
        layers: name of the list of layers.
        head: key of the output head's weight.
        non_parameters: pattern of stored tensors that are not parameters.
        layouts: the place of each native module, by its name (within a layer, for layers); None: native names.
    """

    base: str
    layers: str
    head: str
    non_parameters: re.Pattern[str]
    layouts: Callable[[CheckpointShape], dict[str, Place]] | None


_GGUF = Naming("", "blk", "output.weight", re.compile(r"rope_freqs\.weight"), _gguf_layouts)
NAMINGS = {
    "llama": Naming(
        "model.",
        "layers",
        "lm_head.weight",
        re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"),
        None,
    ),
    "gpt2": Naming(
        "transformer.",
        "h",
        "lm_head.weight",
        re.compile(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)"),
        _gpt2_layouts,
    ),
    "gpt_neox": Naming(
        "gpt_neox.",
        "layers",
        "embed_out.weight",
        re.compile(r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"),
        _gpt_neox_layouts,
    ),
    "gguf": _GGUF,
    "gguf_llama": replace(_GGUF, layouts=_gguf_llama_layouts),
}


def places(checkpoint: CheckpointShape, parameters: Iterable[str], stored: Iterable[str]) -> Mapping[str, Place]:
    """Return where a checkpoint stores each of our parameters.

    Args:
        checkpoint: its shape; its naming is a key of ``NAMINGS``.
        parameters: native names.
        stored: the checkpoint's keys, which tell whether GPT-2's names have their prefix.
    """
    naming = NAMINGS[checkpoint.naming]
    if naming.layouts is None:
        return {name: Place(name, PLAIN) for name in parameters}
    layouts = naming.layouts(checkpoint)
    prefixed = checkpoint.naming != "gpt2" or any(key.startswith(naming.base) for key in stored)
    base = naming.base if prefixed else ""
    return {name: _place(name, naming, layouts, base) for name in parameters}


def _place(name: str, naming: Naming, layouts: Mapping[str, Place], base: str) -> Place:
    module, kind = name.rsplit(".", 1)
    if module == "lm_head":
        return Place(naming.head, PLAIN)
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", module)
    place = layouts[module if layer is None else layer[2]]
    inner = "" if layer is None else f"{naming.layers}.{layer[1]}."
    return Place(f"{base}{inner}{place.key}.{kind}", place.layout)
