"""A slow decoder-only forward pass in plain float64, one token at a time, from weights by name."""

import math

import torch
from torch import Tensor


def logits_after(weights: dict[str, Tensor], config: object, ids: list[int]) -> Tensor:
    """Return ``[V]`` logits of the id that follows ``ids``; ``config`` needs the fields of a transformer's shape."""
    weights = {name: tensor.double() for name, tensor in weights.items()}
    streams = [_embedded(weights, config, token, place) for place, token in enumerate(ids)]
    for layer in range(config.num_layers):
        streams = _layer(weights, config, f"model.layers.{layer}.", streams)
    last = _norm(weights, config, "model.norm", streams[-1])
    head = "model.embed_tokens" if config.tie_embeddings else "lm_head"
    return _linear(weights, head, last)


def _embedded(weights, config, token: int, place: int) -> Tensor:
    out = weights["model.embed_tokens.weight"][token]
    return out + weights["model.embed_positions.weight"][place] if config.positions == "learned" else out


def _layer(weights, config, name: str, streams: list[Tensor]) -> list[Tensor]:
    normed = [_norm(weights, config, name + "input_layernorm", x) for x in streams]
    attended = _attention(weights, config, name + "self_attn.", normed)
    out = []
    for x, a in zip(streams, attended, strict=True):
        y = x + a
        seen = _norm(weights, config, name + "post_attention_layernorm", x if config.parallel_residual else y)
        out.append(y + _mlp(weights, config, name + "mlp.", seen))
    return out


def _attention(weights, config, name: str, normed: list[Tensor]) -> list[Tensor]:
    queries, keys, values = (
        [_heads(weights, config, name, part, x, place) for place, x in enumerate(normed)] for part in "qkv"
    )
    out = []
    for place, query in enumerate(queries):
        first = 0 if config.sliding_window is None else max(0, place - config.sliding_window + 1)
        seen = slice(first, place + 1)
        out.append(_linear(weights, name + "o_proj", _mixed(query, torch.stack(keys[seen]), torch.stack(values[seen]))))
    return out


def _heads(weights, config, name: str, part: str, x: Tensor, place: int) -> Tensor:
    """Return ``[heads, D]`` the queries, keys or values of one token."""
    heads = _linear(weights, name + part + "_proj", x).view(-1, config.head_size)
    if part == "v":
        return heads
    if config.qk_norm:
        heads = _rms(heads, config.norm_eps) * weights[name + part + "_norm.weight"]
    return _turned(heads, config, place)


def _mixed(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return what the heads of one token make of the keys and values ``[tokens, heads, D]`` that it sees."""
    groups, parts = len(query) // keys.shape[1], []
    for number, head in enumerate(query):
        weight = torch.softmax(keys[:, number // groups] @ head / math.sqrt(len(head)), 0)
        parts.append(weight @ values[:, number // groups])
    return torch.cat(parts)


def _turned(heads: Tensor, config, place: int) -> Tensor:
    if config.positions == "learned":
        return heads
    size = config.rope_dim or config.head_size
    first, second = slice(size // 2), slice(size // 2, size)
    if config.rope_interleaved:
        first, second = slice(0, size, 2), slice(1, size, 2)
    angles = [place * config.rope_theta ** (-2 * i / size) for i in range(size // 2)]
    cos, sin = (torch.tensor([turn(angle) for angle in angles], dtype=heads.dtype) for turn in (math.cos, math.sin))
    out = heads.clone()
    out[:, first] = heads[:, first] * cos - heads[:, second] * sin
    out[:, second] = heads[:, second] * cos + heads[:, first] * sin
    return out


def _mlp(weights, config, name: str, x: Tensor) -> Tensor:
    functional = torch.nn.functional
    acts = {"silu": functional.silu, "gelu": functional.gelu, "relu": functional.relu}
    act = acts.get(config.activation, lambda y: functional.gelu(y, approximate="tanh"))
    inner = _linear(weights, name + "up_proj", x)
    inner = act(_linear(weights, name + "gate_proj", x)) * inner if config.gated else act(inner)
    return _linear(weights, name + "down_proj", inner)


def _linear(weights, name: str, x: Tensor) -> Tensor:
    out = weights[name + ".weight"] @ x
    return out + weights[name + ".bias"] if name + ".bias" in weights else out


def _rms(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def _norm(weights, config, name: str, x: Tensor) -> Tensor:
    if config.norm == "rms":
        return _rms(x, config.norm_eps) * weights[name + ".weight"]
    centred = x - x.mean()
    scaled = centred / (centred.square().mean() + config.norm_eps).sqrt()
    return scaled * weights[name + ".weight"] + weights[name + ".bias"]
