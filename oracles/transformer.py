"""A decoder-only transformer of the Llama, GPT-2 and GPT-NeoX families, told apart by configuration only."""

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from oracles.attention import (
    CACHE_ROW_DIM,
    CACHE_SLOT_DIM,
    Attend,
    CachedAttention,
    CausalAttention,
    cache_shape,
)
from oracles.bits import scores_are_bitwise
from oracles.config import TransformerConfig
from oracles.linear import Linear
from oracles.parts import first_layer
from oracles.rotary import Rope, RotaryTable, paired_order, rotate
from specdec.contracts import IntArray, Scores, Want
from specdec.kv_cache import KVCache
from specdec.tree import Tree, is_chain


class Norm(nn.Module):
    """Normalise the last dimension: by its root mean square, or by mean and variance with a shift."""

    def __init__(self, size: int, kind: str, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if kind == "layer" else None
        self._floor: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised ``[..., size]``."""
        if self.bias is not None:
            return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        if self._floor is None:
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        norm = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self._floor)
        return x.div(norm).mul_(self.weight)

    def pack(self) -> None:
        """Take the square root of the size into the weight of a root mean square, which saves half of its kernels.

        x / sqrt(mean(x^2) + eps) is sqrt(size) * x / hypot(|x|, sqrt(size * eps)), which half precision
        would overflow.
        """
        if self.bias is None and self._floor is None and self.weight.itemsize >= 4:
            size = self.weight.numel()
            self.weight.mul_(math.sqrt(size))
            self._floor = self.weight.new_tensor(math.sqrt(size * self.eps))


class SelfAttention(nn.Module):
    """Project to heads, rotate, attend, project back."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        queries, keys = config.num_heads * config.head_size, config.kv_heads * config.head_size
        self.q_proj: Linear | None = Linear(config.hidden_size, queries, config.qkv_bias)
        self.k_proj: Linear | None = Linear(config.hidden_size, keys, config.qkv_bias)
        self.v_proj: Linear | None = Linear(config.hidden_size, keys, config.qkv_bias)
        self.qkv_proj: Linear | None = None
        self.o_proj = Linear(queries, config.hidden_size, config.attn_out_bias)
        self.q_norm = Norm(config.head_size, "rms", config.norm_eps) if config.qk_norm else None
        self.k_norm = Norm(config.head_size, "rms", config.norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, rope: Rope, attend: Attend, residual: Tensor) -> Tensor:
        """Return ``residual`` plus what the heads write, ``[..., hidden]``, from the normed residual stream ``x``."""
        # [..., (H + 2 K) * D] -> [..., H + K, D] that turn and [..., K, D] that do not
        heads = self._heads(x).view(*x.shape[:-1], -1, self.config.head_size)
        turning, value = heads[..., : -self.config.kv_heads, :], heads[..., -self.config.kv_heads :, :]
        if self.q_norm is not None and self.k_norm is not None:
            turning = self._normed(turning, self.q_norm, self.k_norm)
        turned = rotate(turning, rope, self.config.rope_interleaved)
        query, key = turned[..., : self.config.num_heads, :], turned[..., self.config.num_heads :, :]
        out: Tensor = self.o_proj(attend(self.layer, query, key, value), add=residual)
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """Return queries, keys and values side by side, ``[..., (H + 2 K) * D]``."""
        if self.qkv_proj is not None:
            heads: Tensor = self.qkv_proj(x)
            return heads
        return torch.cat([part(x) for part in (self.q_proj, self.k_proj, self.v_proj) if part is not None], dim=-1)

    def _normed(self, turning: Tensor, q_norm: Norm, k_norm: Norm) -> Tensor:
        query, key = turning[..., : self.config.num_heads, :], turning[..., self.config.num_heads :, :]
        return torch.cat([q_norm(query), k_norm(key)], dim=-2)

    def pack(self, pair: bool) -> None:
        """Replace the projections by one layer that reads the input once; ``pair`` makes rotary pairs adjacent.

        Dot products do not see a permutation of the dimensions that queries and keys share.
        """
        if self.q_proj is None or self.k_proj is None or self.v_proj is None:
            return
        if pair:
            order = paired_order(self.config)
            for part in (self.q_proj, self.k_proj):
                first = torch.arange(0, part.out_features, self.config.head_size)
                part.reorder((first.unsqueeze(1) + order).flatten())
            for norm in (self.q_norm, self.k_norm):
                if norm is not None:
                    norm.weight.copy_(norm.weight[order])
        self.qkv_proj = Linear.stacked([self.q_proj, self.k_proj, self.v_proj])
        self.q_proj = self.k_proj = self.v_proj = None


class MLP(nn.Module):
    """Two linear layers around an activation, gated or not."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        inner, outer, bias = config.intermediate_size, config.hidden_size, config.mlp_bias
        self.gate_proj = Linear(outer, inner, bias, config.activation) if config.gated else None
        self.up_proj = Linear(outer, inner, bias, None if config.gated else config.activation)
        self.down_proj = Linear(inner, outer, bias)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return ``residual`` plus the MLP of the normed residual stream ``x``, ``[..., hidden]``."""
        gate = None if self.gate_proj is None else self.gate_proj(x)
        out: Tensor = self.down_proj(self.up_proj(x, times=gate), add=residual)
        return out


class Block(nn.Module):
    """One layer: attention and MLP, each on a normed residual stream, one after the other or side by side."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.parallel = config.parallel_residual
        self.input_layernorm = Norm(config.hidden_size, config.norm, config.norm_eps)
        self.self_attn = SelfAttention(config, layer)
        self.post_attention_layernorm = Norm(config.hidden_size, config.norm, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, rope: Rope, attend: Attend) -> Tensor:
        """Return the residual stream ``[..., hidden]`` after this layer."""
        attended: Tensor = self.self_attn(self.input_layernorm(x), rope, attend, x)
        out: Tensor = self.mlp(self.post_attention_layernorm(x if self.parallel else attended), attended)
        return out


class Decoder(nn.Module):
    """Embeddings, blocks and the last norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.embedding_rows, config.hidden_size)
        self.embed_positions: nn.Embedding | None = None
        if config.positions == "learned":
            self.embed_positions = nn.Embedding(config.max_context, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = Norm(config.hidden_size, config.norm, config.norm_eps)
        self.rotary = RotaryTable(config)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        end: int,
        attend: Attend,
        layers: tuple[int, int] | None = None,
        stream: Tensor | None = None,
    ) -> list[Tensor]:
        """Return the residual stream ``[..., hidden]`` after every layer, from ids at positions below ``end``.

        ``layers`` (first, last) runs some of them only, from ``stream`` in place of the embeddings where it is given.
        """
        x = self._embedded(tokens, positions) if stream is None else stream
        rope = self.rotary.rows(positions, end, x.dtype)
        streams = []
        for block in self.layers if layers is None else islice(self.layers, *layers):
            x = block(x, rope, attend)
            streams.append(x)
        return streams

    def _embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x: Tensor = self.embed_tokens(tokens)
        return x if self.embed_positions is None else x + self.embed_positions(positions)


class Transformer(nn.Module):
    """A decoder-only transformer: trains as it is, and serves as an oracle (``specdec.contracts.Oracle``).

    Parameters bear the names of Hugging Face's Llama. Weights are float32 until ``.to`` says otherwise.

    Args:
        config: the shape.
        seed: of the initial weights; None leaves them unset, for a checkpoint to fill.

    Attributes:
        eos_ids, tokenizer: set by whoever loads a checkpoint.
        bitwise: whether ``pack`` found scores to be bitwise independent of the pass's width, tree, batch and chunking.

    Source: Touvron et al. 2023 (arXiv 2302.13971); initial weights as in GPT-2 (Radford et al. 2019): normal with
        deviation 0.02, divided by sqrt(2 * num_layers) where a layer writes to the residual stream.
    """

    def __init__(self, config: TransformerConfig, seed: int | None = 0) -> None:
        super().__init__()
        self.config = config
        self.eos_ids: tuple[int, ...] = ()
        self.tokenizer: Any | None = None
        self.bitwise = False
        self.model = Decoder(config)
        self.lm_head: Linear | None = None
        if not config.tie_embeddings:
            self.lm_head = Linear(config.hidden_size, config.embedding_rows, config.head_bias)
        if seed is not None:
            self._initialise(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        residual = 0.02 / math.sqrt(2 * self.config.num_layers)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif "norm" not in name:
                deviation = residual if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                parameter.normal_(0.0, deviation, generator=generator)

    @property
    def vocab_size(self) -> int:
        """True number of ids; logits have this width."""
        return self.config.vocab_size

    @property
    def max_context(self) -> int:
        """Positions that the model can serve."""
        return self.config.max_context

    @property
    def num_layers(self) -> int:
        """Number of layers; a pass can be cut between any two."""
        return self.config.num_layers

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and cache."""
        return self.model.embed_tokens.weight.dtype

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights, packed or not."""
        plain = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in self.parameters()}
        packed = (layer.packed_bytes for layer in self.modules() if isinstance(layer, Linear))
        return sum(plain.values()) + sum(packed)

    def head(self, x: Tensor) -> Tensor:
        """Return logits ``[..., V]``, padding cut off, from the normed residual stream."""
        if self.lm_head is not None:
            logits: Tensor = self.lm_head(x)
        else:
            logits = functional.linear(x, self.model.embed_tokens.weight)
        return logits[..., : self.config.vocab_size]

    def read_out(self, stream: Tensor) -> Tensor:
        """Return logits ``[..., V]``, float32 at least, from the residual stream ``[..., D]`` (packed: ``[R, D]``)."""
        logits = self.head(self.model.norm(stream))
        return logits.float() if logits.itemsize < 4 else logits

    def forward(self, tokens: Tensor) -> Tensor:
        """Score whole sequences without a cache.

        Args:
            tokens: ``[B, T]`` int64, T at most ``max_context``.

        Returns:
            ``[B, T, V]`` logits of the next id after every prefix.
        """
        return self.head(self.model.norm(self.streams(tokens)[-1]))

    def streams(self, tokens: Tensor) -> list[Tensor]:
        """Return the residual stream ``[B, T, D]`` after every layer, from whole sequences ``[B, T]``."""
        length = tokens.shape[1]
        positions = torch.arange(length, device=tokens.device).expand(tokens.shape)
        attend = CausalAttention(self.config, length, tokens.device)
        streams: list[Tensor] = self.model(tokens, positions, length, attend)
        return streams

    @torch.no_grad()
    def pack(self) -> "Transformer":
        """Prepare for inference, once, in place: fuse projections, lay weights out for small batches, check the bits.

        The model scores the same afterwards, up to rounding, and can no longer train. Weights stay resident once, but
        for a tied embedding, which also becomes a head.

        Returns:
            The model itself.
        """
        self.requires_grad_(False)
        self.lm_head = self._cut_head()
        # No complex numbers of half precision.
        pair = self.dtype.itemsize >= 4
        self.model.rotary = RotaryTable(self.config, as_complex=pair)
        for module in self.modules():
            if isinstance(module, SelfAttention):
                module.pack(pair)
        for module in self.modules():
            if isinstance(module, (Linear, Norm)):
                module.pack()
        self.bitwise = self.dtype == torch.float32 and self.device.type == "cpu" and scores_are_bitwise(self)
        return self

    def _cut_head(self) -> Linear:
        """Return a head without the rows that pad the vocabulary."""
        if self.lm_head is None:
            return Linear.of(self.model.embed_tokens.weight[: self.vocab_size])
        return self.lm_head.cut(self.vocab_size)

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> KVCache:
        """Return an empty cache of ``num_rows`` sequences of up to ``capacity`` slots (rounded up to whole blocks).

        Raises:
            ValueError: it would exceed ``max_cache_bytes`` (None: half of the free memory).

        Cost: 2 * layers * KV heads * head size * bytes * rows * capacity.
        """
        shape = cache_shape(self.config, num_rows, capacity)
        return KVCache(shape, CACHE_ROW_DIM, CACHE_SLOT_DIM, self.dtype, self.device, max_cache_bytes)

    @torch.no_grad()
    def score(
        self,
        tokens: Tensor,
        parents: Tensor | None,
        num_nodes: Tensor,
        cache: KVCache,
        rows: IntArray,
        want: Want = "all",
        hidden: Sequence[int] = (),
        first: int = 0,
        *,
        layers: tuple[int, int] | None = None,
        stream: Tensor | None = None,
    ) -> Scores:
        """Score trees of nodes in one pass, or in a part of one, as ``specdec.contracts.LayeredOracle`` spells out.

        ``hidden`` numbers layers from 0; the residual stream after a layer is returned.

        Raises:
            ValueError: an unknown ``want`` or layer, a row without room, a pending token beyond ``max_context``, or a
                part that does not begin or end as ``stream`` and ``want`` say.

        Guarantee: where ``bitwise`` is True, a node's logits depend bitwise on the ids of its path only, in however
            many parts they were scored.

        Cost: one read of the weights, and ``CachedAttention`` per layer; logits take B * N * V * 4 bytes.
        """
        self._check_call(cache, rows, want, hidden)
        shape = (tokens.shape[0], tokens.shape[1] - first, self.config.hidden_size)
        lowest = first_layer(layers, stream, shape, want, hidden, self.num_layers)
        tree = Tree(tokens, None if is_chain(parents) else parents, num_nodes)
        attend = CachedAttention(self.config, tree, cache, rows, first)
        # Padding nodes may stand beyond the context: their scores mean nothing, but must not fail.
        positions = attend.positions.clamp(max=self.max_context - 1).flatten()
        fed = tokens[:, first:] if first else tokens
        given = None if stream is None else stream.flatten(0, 1)
        streams = self.model(fed.flatten(), positions, min(attend.span, self.max_context), attend, layers, given)
        kept = tuple(streams[layer - lowest].view(*fed.shape, -1) for layer in hidden)
        return Scores(self._logits(streams[-1], num_nodes - first, want), kept)

    def _logits(self, stream: Tensor, num_nodes: Tensor, want: Want) -> Tensor | None:
        batch, width = len(num_nodes), len(stream) // len(num_nodes)
        if want == "none":
            return None
        if want == "last":
            at = torch.arange(batch, device=stream.device) * width + num_nodes.to(stream.device) - 1
            stream, width = stream[at], 1
        return self.read_out(stream).view(batch, width, -1)

    def _check_call(self, cache: KVCache, rows: IntArray, want: Want, hidden: Sequence[int]) -> None:
        if want not in get_args(Want):
            raise ValueError(f"want is {want!r}; choose one of {', '.join(map(repr, get_args(Want)))}")
        wrong = [layer for layer in hidden if not 0 <= layer < self.config.num_layers]
        if wrong:
            raise ValueError(f"hidden asks for layers {wrong}; the model has layers 0..{self.config.num_layers - 1}")
        longest = int(cache.lengths[rows].max())
        if longest >= self.max_context:
            raise ValueError(f"a row holds {longest} tokens; max_context {self.max_context} has no position left")
