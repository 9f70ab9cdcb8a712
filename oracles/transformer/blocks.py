"""A decoder-only transformer up to its head, and the parts of its layers; families differ in configuration only."""

import math
from dataclasses import replace
from itertools import islice
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from oracles.transformer.attention import Attend
from oracles.transformer.config import TransformerConfig
from oracles.transformer.linear import Linear
from oracles.transformer.rotary import Rope, RotaryTable, pair_order, rotate
from specdec.transfers import HOST

Packed = TypeVar("Packed", bound=nn.Module)


class Apply(Protocol):
    """How a layer's parts, which treat every row separately, are applied to rows."""

    def __call__(self, part: nn.Module, *rows: Tensor | None) -> Tensor:
        """Return the output of a norm or a linear layer for its arguments, each ``[..., X]`` or None."""


def at_once(part: nn.Module, *rows: Tensor | None) -> Tensor:
    """Return the output ``[..., Y]`` of a part for all rows ``[..., X]`` in one call; see ``Apply``."""
    out: Tensor = part(*rows)
    return out


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
            # Under autocast the output of a product is narrower than the weight.
            return functional.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.eps)
        norm = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self._floor)
        return x.div(norm).mul_(self.weight)

    def pack(self) -> None:
        """Fold the square root of the size into the weight of a root-mean-square norm, which saves half of its kernels.

        x / sqrt(mean(x^2) + eps) is sqrt(size) * x / hypot(|x|, sqrt(size * eps)), which would overflow in half
        precision.
        """
        if self.bias is None and self._floor is None and self.weight.itemsize >= 4:
            size = self.weight.numel()
            self.weight.mul_(math.sqrt(size))
            self._floor = self.weight.new_full((), math.sqrt(size * self.eps))


class SelfAttention(nn.Module):
    """Project to heads and rotate before attention, project back after it."""

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

    def heads(self, x: Tensor, rope: Rope, apply: Apply) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries ``[..., H, D]``, keys and values ``[..., K, D]``, from the normed residual stream ``x``."""
        # [..., (H + 2 K) * D] -> [..., H + K, D] that turn and [..., K, D] that do not
        heads = self._side_by_side(x, apply).view(*x.shape[:-1], -1, self.config.head_size)
        turning, value = heads[..., : -self.config.kv_heads, :], heads[..., -self.config.kv_heads :, :]
        if self.q_norm is not None and self.k_norm is not None:
            query, key = turning[..., : self.config.num_heads, :], turning[..., self.config.num_heads :, :]
            turning = torch.cat([apply(self.q_norm, query), apply(self.k_norm, key)], dim=-2)
        turned = rotate(turning, rope, self.config.rope_interleaved)
        return turned[..., : self.config.num_heads, :], turned[..., self.config.num_heads :, :], value

    def _side_by_side(self, x: Tensor, apply: Apply) -> Tensor:
        """Return queries, keys and values side by side, ``[..., (H + 2 K) * D]``."""
        if self.qkv_proj is not None:
            return apply(self.qkv_proj, x)
        return torch.cat([apply(part, x) for part in (self.q_proj, self.k_proj, self.v_proj) if part is not None], -1)

    def pack(self, pair: bool) -> None:
        """Replace the projections by one layer that reads the input once; ``pair`` makes rotary pairs adjacent.

        A permutation of the dimensions that queries and keys share leaves dot products unchanged.
        """
        if self.q_proj is None or self.k_proj is None or self.v_proj is None:
            return
        if pair:
            order = pair_order(self.config)
            for part in (self.q_proj, self.k_proj):
                first = torch.arange(0, part.out_features, self.config.head_size, device=HOST)
                part.reorder((first.unsqueeze(1) + order).flatten())
            for norm in (self.q_norm, self.k_norm):
                if norm is not None:
                    norm.weight.copy_(norm.weight[order])
        self.qkv_proj = Linear.stack([self.q_proj, self.k_proj, self.v_proj])
        self.q_proj = self.k_proj = self.v_proj = None


class MLP(nn.Module):
    """Two linear layers around an activation, gated or not."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        inner, outer, bias = config.intermediate_size, config.hidden_size, config.mlp_bias
        self.gate_proj = Linear(outer, inner, bias, config.activation) if config.gated else None
        self.up_proj = Linear(outer, inner, bias, None if config.gated else config.activation)
        self.down_proj = Linear(inner, outer, bias)

    def forward(self, x: Tensor, residual: Tensor, apply: Apply = at_once) -> Tensor:
        """Return ``residual`` plus the MLP of the normed residual stream ``x``, ``[..., hidden]``."""
        gate = None if self.gate_proj is None else apply(self.gate_proj, x)
        return apply(self.down_proj, apply(self.up_proj, x, None, gate), residual)


class Block(nn.Module):
    """One layer: attention and MLP, each on a normed residual stream, one after the other or side by side."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.parallel = config.parallel_residual
        self.input_layernorm = Norm(config.hidden_size, config.norm, config.norm_eps)
        self.self_attn = SelfAttention(config, layer)
        self.post_attention_layernorm = Norm(config.hidden_size, config.norm, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, rope: Rope, attend: Attend, apply: Apply = at_once) -> Tensor:
        """Return the residual stream ``[..., hidden]`` after this layer."""
        heads = self.self_attn.heads(apply(self.input_layernorm, x), rope, apply)
        attended = apply(self.self_attn.o_proj, attend(self.self_attn.layer, *heads), x)
        normed = apply(self.post_attention_layernorm, x if self.parallel else attended)
        out: Tensor = self.mlp(normed, attended, apply)
        return out


@torch.no_grad()
def pack_parts(module: Packed) -> Packed:
    """Prepare all linear layers and norms of a module for inference, once, in place; return the module itself."""
    module.requires_grad_(False)
    for part in module.modules():
        if isinstance(part, (Linear, Norm)):
            part.pack()
    return module


class Adapter(nn.Module):
    """Move a residual stream towards its value after the remaining layers: ``x + MLP(norm(x))``.

    The MLP has the form of the oracle's own, gated or not, but its own width.

    Args:
        config: of the oracle.
        inner_size: width of the MLP.
        seed: of the initial weights, which make the adapter the identity; None leaves them unset.
    """

    def __init__(self, config: TransformerConfig, inner_size: int, seed: int | None = 0) -> None:
        super().__init__()
        self.norm = Norm(config.hidden_size, config.norm, config.norm_eps)
        self.mlp = MLP(replace(config, intermediate_size=inner_size))
        if seed is not None:
            self._initialise(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        for name, parameter in self.mlp.named_parameters():
            if name.endswith("bias") or name.startswith("down_proj"):
                parameter.zero_()
            else:
                parameter.normal_(0.0, 0.02, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return the adapted stream ``[..., D]``; once packed, ``x`` must be ``[rows, D]``."""
        out: Tensor = self.mlp(self.norm(x), x)
        return out


def embedding(rows: int, width: int) -> nn.Embedding:
    """Return an unfilled table: on the meta device torch's initialisation imports its compiler, for over a second."""
    table: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)  # type: ignore[no-untyped-call]
    return table


class Decoder(nn.Module):
    """Embeddings, blocks and the last norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = embedding(config.embedding_rows, config.hidden_size)
        self.embed_positions: nn.Embedding | None = None
        if config.positions == "learned":
            self.embed_positions = embedding(config.max_context, config.hidden_size)
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
        apply: Apply = at_once,
    ) -> list[Tensor]:
        """Return the residual stream ``[..., hidden]`` after every layer, from ids at positions below ``end``.

        ``layers`` (first, last) runs only these, from ``stream`` in place of the embeddings if it is given.
        ``apply`` applies the parts of layers to rows.
        """
        x = self._embed(tokens, positions) if stream is None else stream
        rope = self.rotary.rows(positions, end, x.dtype)
        streams = []
        for block in self.layers if layers is None else islice(self.layers, *layers):
            x = block(x, rope, attend, apply)
            streams.append(x)
        return streams

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x: Tensor = self.embed_tokens(tokens)
        return x if self.embed_positions is None else x + self.embed_positions(positions)


def check_formats(decoder: Decoder, with_gates: bool) -> None:
    """Refuse layers that a pass reads as one if a file stores them in several formats.

    Args:
        decoder: not yet packed; its layers round their inputs.
        with_gates: whether gate and up projection are read as one too, as in compiled code.

    Raises:
        ValueError: the formats differ; the message names the layer and the formats.
    """
    joined = {"self_attn": ("q_proj", "k_proj", "v_proj"), "mlp": ("gate_proj", "up_proj") if with_gates else ()}
    for number, block in enumerate(decoder.layers):
        for part, names in joined.items():
            layers = {name: getattr(getattr(block, part), name) for name in names}
            held = {name: layer.quantised.format.name for name, layer in layers.items() if layer is not None}
            if len(set(held.values())) > 1:
                told = ", ".join(f"{name} {kind.removesuffix('-int8')}" for name, kind in held.items())
                raise ValueError(f"model.layers.{number}.{part} has {told}: they are read as one, and need one type")
