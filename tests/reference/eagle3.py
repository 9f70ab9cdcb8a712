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

    def run(self, ids: list[int], states: list[Array], drafted: list[int]) -> tuple[list[Array], list[Array]]:
        """Return the logits ``[V]`` and what is fed back ``[H]``, after the pending id and after each drafted one.

        Args:
            ids: x_0 .. x_n, the last one pending.
            states: ``[n_layers, D]`` of x_0 .. x_{n-1}.
            drafted: a path after x_n.
        """
        nodes = [(token, self.feature(state)) for token, state in zip(ids[1:], states, strict=True)]
        keys: list[Array] = []
        values: list[Array] = []
        logits, fed = [], []
        for position in range(len(nodes) + len(drafted)):
            if position < len(nodes):
                token, feature = nodes[position]
            else:
                token, feature = drafted[position - len(nodes)], fed[-1]
            stream = self._layer(token, feature, position, keys, values)
            out = self._rms(stream, self.weights["norm.weight"])
            if position >= len(nodes) - 1:
                logits.append(self._law(out))
                fed.append(out if self.norm_output else stream)
        return logits, fed

    def _rms(self, x: Array, weight: Array) -> Array:
        return x / np.sqrt(np.mean(x * x) + self.eps) * weight

    def _law(self, out: Array) -> Array:
        written = self.weights["lm_head.weight"] @ out
        if self.target_ids is None:
            return written[: self.vocab_size]
        every = np.full(self.vocab_size, -np.inf)
        for row, token in enumerate(self.target_ids):
            every[token] = written[row]
        return every

    def _turn(self, x: Array, position: int) -> Array:
        half = len(x) // 2
        turned = np.empty_like(x)
        for i in range(half):
            angle = position * self.theta ** (-2 * i / len(x))
            turned[i] = x[i] * np.cos(angle) - x[i + half] * np.sin(angle)
            turned[i + half] = x[i + half] * np.cos(angle) + x[i] * np.sin(angle)
        return turned

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
            query = np.stack([self._rms(head, w["self_attn.q_norm.weight"]) for head in query])
            key = np.stack([self._rms(head, w["self_attn.k_norm.weight"]) for head in key])
        keys.append(np.stack([self._turn(head, position) for head in key]))
        values.append(value)
        attended = []
        for number in range(self.num_heads):
            group = number * self.num_kv_heads // self.num_heads
            turned = self._turn(query[number], position)
            first = 0 if self.window is None else max(len(keys) - self.window, 0)
            scores = np.array([turned @ past[group] for past in keys[first:]]) / np.sqrt(self.head_dim)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            attended.append(sum(weight * past[group] for weight, past in zip(weights, values[first:], strict=True)))
        stream = (normed if self.norm_before_residual else feature) + w["self_attn.o_proj.weight"] @ np.concatenate(
            attended
        )
        stream = stream + w.get("self_attn.o_proj.bias", 0.0)
        inner = self._rms(stream, w["post_attention_layernorm.weight"])
        gate, up = w["mlp.gate_proj.weight"] @ inner, w["mlp.up_proj.weight"] @ inner
        return stream + w["mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
