"""The shape of a decoder-only transformer: one frozen record from which the model is built."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

Norm = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
Positions = Literal["rope", "learned"]
RopeScalingKind = Literal["linear", "llama3", "yarn", "factors"]


@dataclass(frozen=True)
class RopeScaling:
    """Say how rotary frequencies are stretched beyond the context of pre-training.

    Args:
        kind: "linear" divides every frequency by `factor`; "llama3" divides the low ones, keeps the high ones and
            interpolates between; "yarn" does so by another rule, and scales cosines and sines up; "factors" divides
            each by its own number.
        factor: by how much, at least 1 ("factors": 1).
        low_freq_factor: llama3: wavelengths above `original_context / low_freq_factor` are fully scaled.
        high_freq_factor: llama3: wavelengths below `original_context / high_freq_factor` are kept.
        original_context: llama3, yarn: positions seen in pre-training.
        beta_fast, beta_slow: yarn: pairs that turn more often than `beta_fast` times in `original_context` are kept,
            those that turn less often than `beta_slow` times are fully scaled.
        truncate: yarn: both bounds are moved outwards to whole pairs.
        attention_factor: yarn: factor on cosines and sines; None: 1 + ln(factor) / 10.
        factors: "factors": a positive divisor for each pair of dimensions that rotates.

    Source: Chen et al. 2023 (arXiv 2306.15595) for "linear"; the Llama 3 herd of models (arXiv 2407.21783), release
        code, for "llama3"; Peng et al. 2023 (arXiv 2309.00071), as transformers computes it, for "yarn".
    """

    kind: RopeScalingKind
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_choice("RopeScaling.kind", self.kind, RopeScalingKind)
        if not 1.0 <= self.factor < math.inf:
            raise ValueError(f"RopeScaling.factor is {self.factor}; it divides frequencies, is at least 1 and finite")
        if self.original_context <= 0:
            raise ValueError(f"RopeScaling.original_context is {self.original_context}; give a length")
        low, high = self.low_freq_factor, self.high_freq_factor
        if not 0.0 < low < high < math.inf:
            raise ValueError(
                f"RopeScaling needs 0 < low_freq_factor < high_freq_factor, both finite, got {low} and {high}"
            )
        if not 0.0 < self.beta_slow < self.beta_fast < math.inf:
            raise ValueError(
                f"RopeScaling needs 0 < beta_slow < beta_fast, both finite, got {self.beta_slow} and {self.beta_fast}"
            )
        if self.attention_factor is not None and not 0.0 < self.attention_factor < math.inf:
            raise ValueError(f"RopeScaling.attention_factor is {self.attention_factor}; it is positive and finite")
        if bool(self.factors) != (self.kind == "factors") or not all(0.0 < f < math.inf for f in self.factors):
            raise ValueError("RopeScaling.factors are positive and finite, and belong to the kind 'factors' alone")


@dataclass(frozen=True)
class TransformerConfig:
    """Describe a decoder-only transformer of the Llama, GPT-2 or GPT-NeoX family.

    Args:
        vocab_size: true number of ids, V; logits have this width.
        hidden_size: width of the residual stream.
        num_layers: number of blocks, at least 1.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides `num_heads` (None: the same number, i.e. multi-head attention).
        head_dim: width of a head (None: hidden_size / num_heads).
        intermediate_size: width of the MLP.
        max_context: positions that the model can serve.
        norm: root-mean-square norm (scale only) or layer norm (scale and shift).
        norm_eps: added to the variance.
        activation: of the MLP.
        gated: whether the MLP multiplies by a gate, as in SwiGLU.
        positions: rotary, or a learned table of `max_context` rows.
        rope_theta: base of the rotary frequencies.
        rope_dim: leading dimensions of a head that rotate, even (None: all of them).
        rope_interleaved: rotate pairs (2i, 2i+1) instead of (i, i + rope_dim / 2).
        rope_scaling: stretched frequencies, or None.
        sliding_window: a query at position p sees positions p - sliding_window < j <= p (None: all).
        qkv_bias, attn_out_bias, mlp_bias, head_bias: which linear layers have a bias.
        qk_norm: root-mean-square norm of every query and key head (Qwen3).
        parallel_residual: attention and MLP both read the block's input (GPT-NeoX).
        tie_embeddings: the head is the embedding table.
        padded_vocab_size: rows of the embedding table and head if a checkpoint has more than `vocab_size`.
        draft_vocab_size: number of ids that the head writes, if not all; every other id has probability 0.

    Raises:
        ValueError: a field is out of range, or two contradict each other.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_context: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    norm: Norm = "rms"
    norm_eps: float = 1e-5
    activation: Activation = "silu"
    gated: bool = True
    positions: Positions = "rope"
    rope_theta: float = 10000.0
    rope_dim: int | None = None
    rope_interleaved: bool = False
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None
    qkv_bias: bool = False
    attn_out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: bool = False
    parallel_residual: bool = False
    tie_embeddings: bool = False
    padded_vocab_size: int | None = None
    draft_vocab_size: int | None = None

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_heads()
        self._check_positions()
        check_choice("norm", self.norm, Norm)
        check_choice("activation", self.activation, Activation)
        if not 0.0 <= self.norm_eps < math.inf:
            raise ValueError(f"norm_eps is {self.norm_eps}; it is added to a variance, is at least 0 and finite")

    @property
    def kv_heads(self) -> int:
        """Return the number of key and value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_size(self) -> int:
        """Return the width of a head."""
        return self.hidden_size // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def rotary_size(self) -> int:
        """Return how many leading dimensions of a head rotate (0 with learned positions)."""
        if self.positions == "learned":
            return 0
        return self.head_size if self.rope_dim is None else self.rope_dim

    @property
    def embedding_rows(self) -> int:
        """Return the rows of the embedding table, padding included."""
        return self.vocab_size if self.padded_vocab_size is None else self.padded_vocab_size

    def _check_sizes(self) -> None:
        names = ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_context")
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it is at least 1")
        if self.embedding_rows < self.vocab_size:
            raise ValueError(
                f"padded_vocab_size {self.padded_vocab_size} is below vocab_size {self.vocab_size}; give the rows of "
                "the embedding table"
            )
        self._check_draft_vocabulary()
        if self.tie_embeddings and self.head_bias:
            raise ValueError("head_bias needs a head of its own: set tie_embeddings=False")

    def _check_draft_vocabulary(self) -> None:
        if self.draft_vocab_size is None:
            return
        if not 1 <= self.draft_vocab_size <= self.vocab_size:
            raise ValueError(
                f"draft_vocab_size is {self.draft_vocab_size}; a head writes at least one id and at most vocab_size "
                f"{self.vocab_size}"
            )
        if self.tie_embeddings or self.head_bias:
            raise ValueError(
                "draft_vocab_size needs a head of its own, without bias: set tie_embeddings=False and head_bias=False"
            )

    def _check_heads(self) -> None:
        if self.head_dim is None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is no multiple of num_heads {self.num_heads}; give head_dim"
            )
        if self.head_size < 1:
            raise ValueError(f"head_dim is {self.head_dim}; it is at least 1")
        if self.kv_heads < 1 or self.num_heads % self.kv_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads} does not divide num_heads {self.num_heads}")

    def _check_positions(self) -> None:
        check_choice("positions", self.positions, Positions)
        size = self.rotary_size
        if not 0.0 < self.rope_theta < math.inf:
            raise ValueError(f"rope_theta is {self.rope_theta}; the base of a power is positive and finite")
        if self.rope_scaling is not None and self.rope_scaling.kind == "yarn" and self.rope_theta <= 1.0:
            raise ValueError(f"rope_theta is {self.rope_theta}; with yarn it is above 1, or no pair turns slower")
        if size % 2 or not 0 <= size <= self.head_size:
            raise ValueError(f"rope_dim {size} must be even, at least 0 and at most head_dim {self.head_size}")
        if self.positions == "learned" and (self.rope_scaling is not None or self.rope_dim is not None):
            raise ValueError("rope_dim and rope_scaling have no meaning with learned positions: leave them out")
        factors = () if self.rope_scaling is None else self.rope_scaling.factors
        if factors and 2 * len(factors) != size:
            raise ValueError(f"RopeScaling.factors are {len(factors)}; give one for each of {size // 2} pairs")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window is {self.sliding_window}; it is at least 1, or None for full attention")


def check_choice(name: str, value: object, choices: object, otherwise: str = "") -> None:
    """Refuse a value that is not one of a ``Literal``'s choices.

    Raises:
        ValueError: the message has the name, the value and the choices, followed by ``otherwise``.
    """
    legal = get_args(choices)
    if value not in legal:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(map(repr, legal))}{otherwise}")
