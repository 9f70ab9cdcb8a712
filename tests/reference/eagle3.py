"""EAGLE-3's forward pass, node by node in plain numpy, written from the paper: no cache, no batch, no import of ours.

Notation: x_0 .. x_n are ids; h_t the outputs of the target's layers at x_t, side by side; f_t = fc(h_t). Node t of the
head is the pair (x_{t+1}, f_t) and stands at rotary position t. Drafted nodes take, for f_t, what the head gave at the
node before.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Eagle3:
    """A head: its weights by the names of the paper's release, and what differs between releases.

    Args:
        weights: float64; ``embed_tokens.weight`` and ``lm_head.weight`` are given even if the target lends them.
        target_ids: the id of each row of the head; None: they are all.
        window: nodes that a node sees, itself among them; None: all before it.
        stretch: positions count as so many times nearer (linear scaling).
    """

    weights: dict[str, Array]
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    theta: float
    num_layers_read: int = 3
    target_ids: list[int] | None = None
    norm_before_residual: bool = False
    norm_output: bool = False
    window: int | None = None
    stretch: float = 1.0

    def feature(self, states: Array) -> Array:
        """Return f_t from the states of the layers ``[n, D]`` at one position."""
        parts = []
        for i, state in enumerate(states):
            norm = self.weights.get(f"fc_norm.{i}.weight")
            parts.append(state if norm is None else self._rms(state, norm))
        whole = np.concatenate(parts)
        if "input_norm.weight" in self.weights:
            whole = self._rms(whole, self.weights["input_norm.weight"])
        return self.weights["fc.weight"] @ whole

    def begin(self, ids: list[int], states: list[Array]) -> "CommittedState":
        """Return what is known once the pending id has been read.

        Args:
            ids: x_0 .. x_n, the last one pending.
            states: ``[n_layers, D]`` of x_0 .. x_{n-1}.
        """
        begun = CommittedState([], [])
        for token, state in zip(ids[1:], states, strict=True):
            begun.logits, begun.fed = self._node(token, self.feature(state), begun.keys, begun.values)
        return begun

    def run(self, begun: "CommittedState", drafted: list[int]) -> tuple[Array, Array]:
        """Return the logits ``[V]`` and what is fed back ``[H]`` after a drafted path, from what has begun."""
        logits, fed, keys, values = begun.logits, begun.fed, [*begun.keys], [*begun.values]
        for token in drafted:
            logits, fed = self._node(token, fed, keys, values)
        return logits, fed

    def _node(self, token: int, feature: Array, keys: list[Array], values: list[Array]) -> tuple[Array, Array]:
        """Return the logits after the next node and what it feeds back."""
        stream = self._layer(token, feature, len(keys), keys, values)
        out = self._rms(stream, self.weights["norm.weight"])
        return self._law(out), out if self.norm_output else stream

    def _rms(self, x: Array, weight: Array) -> Array:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * weight

    def _law(self, out: Array) -> Array:
        written = self.weights["lm_head.weight"] @ out
        if self.target_ids is None:
            return written[: self.vocab_size]
        every = np.full(self.vocab_size, -np.inf)
        for row, token in enumerate(self.target_ids):
            every[token] = written[row]
        return every

    def _turn(self, heads: Array, position: int) -> Array:
        """Return heads ``[n, D]`` turned to a position."""
        size = heads.shape[1]
        angles = position / self.stretch * self.theta ** (-2 * np.arange(size // 2) / size)
        first, second = np.split(heads, 2, axis=1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)

    def _layer(self, token: int, feature: Array, position: int, keys: list[Array], values: list[Array]) -> Array:
        w = {name.removeprefix("midlayer."): value for name, value in self.weights.items()}
        embedded = self._rms(w["embed_tokens.weight"][token], w["input_layernorm.weight"])
        normed = self._rms(feature, w["hidden_norm.weight"])
        both = np.concatenate([embedded, normed])
        query, key, value = (
            (w[f"self_attn.{name}_proj.weight"] @ both + w.get(f"self_attn.{name}_proj.bias", 0.0)).reshape(
                -1, self.head_dim
            )
            for name in "qkv"
        )
        if "self_attn.q_norm.weight" in w:
            query, key = self._rms(query, w["self_attn.q_norm.weight"]), self._rms(key, w["self_attn.k_norm.weight"])
        query, key = self._turn(query, position), self._turn(key, position)
        keys.append(key)
        values.append(value)
        first = 0 if self.window is None else max(len(keys) - self.window, 0)
        seen_keys, seen_values = np.stack(keys[first:]), np.stack(values[first:])
        attended = []
        for number, head in enumerate(query):
            group = number * self.num_kv_heads // self.num_heads
            scores = seen_keys[:, group] @ head / np.sqrt(self.head_dim)
            weights = np.exp(scores - scores.max())
            attended.append(weights / weights.sum() @ seen_values[:, group])
        stream = (normed if self.norm_before_residual else feature) + w["self_attn.o_proj.weight"] @ np.concatenate(
            attended
        )
        stream = stream + w.get("self_attn.o_proj.bias", 0.0)
        inner = self._rms(stream, w["post_attention_layernorm.weight"])
        gate, up = w["mlp.gate_proj.weight"] @ inner, w["mlp.up_proj.weight"] @ inner
        return stream + w["mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)


@dataclass
class CommittedState:
    """Keys and values of the nodes up to the pending id, the logits after it and what is fed back."""

    keys: list[Array]
    values: list[Array]
    logits: Array | None = None
    fed: Array | None = None
