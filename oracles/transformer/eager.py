"""A decoder-only transformer of the Llama, GPT-2 and GPT-NeoX families, which differ in configuration only."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from oracles.quantisation import FLOATS, FORMATS, INT8, WHOLE, Format
from oracles.transformer.attention import CachedAttention, CausalAttention
from oracles.transformer.bits import has_bitwise_scores
from oracles.transformer.blocks import Adapter, Decoder, Norm, SelfAttention, pack_parts
from oracles.transformer.config import TransformerConfig
from oracles.transformer.draft_vocabulary import head_of
from oracles.transformer.linear import (
    Linear,
    at_least_float32,
    dequantise_layers,
    linear_layers,
    round_weight,
    store_layers,
)
from oracles.transformer.paged import PagedTransformer
from oracles.transformer.pass_parts import check_call, first_layer, wanted_logits
from oracles.transformer.rotary import RotaryTable
from specdec.cache import PagedKVCache
from specdec.contracts import IntArray, Scores, Tree, Want, is_chain


class Transformer(PagedTransformer):
    """A decoder-only transformer: it trains as it is, and serves as an oracle (``specdec.contracts.Oracle``).

    Parameters have the names of Hugging Face's Llama. Weights are float32 until ``.to`` changes that.

    Args:
        config: the shape.
        seed: of the initial weights; None leaves them unset, for a checkpoint to fill.

    Attributes:
        eos_ids, tokenizer, chat_template: set by whoever loads a checkpoint.
        backend: "eager": passes are torch operations.
        bitwise: whether ``pack`` found scores to be bitwise independent of the pass's width, tree, batch and chunking.

    Source: Touvron et al. 2023 (arXiv 2302.13971); initial weights as in GPT-2 (Radford et al. 2019): normal with
        deviation 0.02, divided by sqrt(2 * num_layers) in layers that write to the residual stream.
    """

    backend, chains = "eager", False

    def __init__(self, config: TransformerConfig, seed: int | None = 0) -> None:
        super().__init__()
        self.config = config
        self.eos_ids: tuple[int, ...] = ()
        self.tokenizer: Any | None = None
        self.bitwise = False
        self.model = Decoder(config)
        self.lm_head: Linear | None = None
        if not config.tie_embeddings:
            self.lm_head = head_of(config)
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

    def head(self, x: Tensor) -> Tensor:
        """Return logits ``[..., V]``, padding cut off, from the normed residual stream."""
        if self.lm_head is not None:
            logits: Tensor = self.lm_head(x)
        else:
            logits = functional.linear(x, self.model.embed_tokens.weight)
        return logits[..., : self.config.vocab_size]

    def read_out(self, stream: Tensor) -> Tensor:
        """Return logits ``[..., V]``, float32 at least, from the residual stream ``[..., D]`` (packed: ``[R, D]``)."""
        return at_least_float32(self.head(self.model.norm(stream)))

    @torch.no_grad()
    def last_norm(self, stream: Tensor) -> Tensor:
        """Return the residual stream ``[..., D]`` as the head reads it: normed."""
        normed: Tensor = self.model.norm(stream)
        return normed

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """Return ``[..., D]`` rows of the embedding table, without position embeddings."""
        rows: Tensor = self.model.embed_tokens(ids)
        return rows

    def read_out_after(self, norm: Norm) -> Callable[[Tensor], Tensor]:
        """Return a function from streams ``[R, D]`` to logits ``[R, V]``, with a norm in place of the last one."""

        @torch.no_grad()
        def read(stream: Tensor) -> Tensor:
            return at_least_float32(self.head(norm(stream)))

        return read

    def read_out_behind(self, adapter: Adapter) -> Callable[[Tensor], Tensor]:
        """Return a function from streams ``[R, D]`` to logits ``[R, V]`` through an adapter.

        The adapter is moved to the model's device and dtype, and packed.
        """
        placed = pack_parts(adapter.to(self.device, self.dtype))

        @torch.no_grad()
        def read(stream: Tensor) -> Tensor:
            return self.read_out(placed(stream))

        return read

    def forward(self, tokens: Tensor) -> Tensor:
        """Score whole sequences without a cache.

        Args:
            tokens: ``[B, T]`` int64, T at most ``max_context``.

        Returns:
            ``[B, T, V]`` logits of the next id after every prefix.
        """
        return self.head(self.model.norm(self.streams(tokens)[-1]))

    def streams(
        self, tokens: Tensor, layers: tuple[int, int] | None = None, stream: Tensor | None = None
    ) -> list[Tensor]:
        """Return the residual stream ``[B, T, D]`` after every layer, from whole sequences ``[B, T]``.

        ``layers`` (first, last) runs only these, from ``stream`` in place of the embeddings if it is given.
        """
        length = tokens.shape[1]
        positions = torch.arange(length, device=tokens.device).expand(tokens.shape)
        attend = CausalAttention(self.config, length, tokens.device)
        streams: list[Tensor] = self.model(tokens, positions, length, attend, layers, stream)
        return streams

    @torch.no_grad()
    def store(self, weight_type: str) -> "Transformer":
        """Round the weights of all linear layers, and a tied embedding, to a type, in place.

        Args:
            weight_type: the name of a float dtype, or of a format as in ``quantise``. If the dtype is not the
                activations' own, make a native oracle of the model, or widen the rounded weights again with ``to``.

        Returns:
            The model itself.

        Raises:
            ValueError: an unknown type; as in ``quantise``; a weight is not finite, or too large for the dtype; a layer
                is quantised already.
        """
        if weight_type in FORMATS:
            return self.quantise(FORMATS[weight_type])
        if weight_type not in FLOATS:
            raise ValueError(f"weight_type is {weight_type!r}; choose one of {', '.join((*FLOATS, *FORMATS))}")
        store_layers(self, weight_type)
        if self.lm_head is None:
            round_weight(self.model.embed_tokens, "model.embed_tokens", weight_type)
        return self

    @torch.no_grad()
    def quantise(self, format: Format = INT8) -> "Transformer":
        """Round the weights of all linear layers to few bits, in place; embeddings, norms and biases stay as they are.

        Layers that already have this format stay as they are. A tied embedding becomes the rounded head, in float32.
        The model scores with value times scale in float32; a model in another dtype can only become a native oracle.
        It can no longer train, and is unusable after an error.

        Args:
            format: the format to round to, to the nearest.

        Returns:
            The model itself.

        Raises:
            ValueError: a layer's weight is not finite, or was packed before; the message names the layer.

        Cost: memory of one layer in float32 at a time.
        """
        tied = Linear.of(self.model.embed_tokens.weight) if self.lm_head is None else None
        self.lm_head = self.lm_head or tied
        for name, layer in linear_layers(self):
            layer.quantise(name, format)
        if tied is not None and tied.quantised is not None:
            self.model.embed_tokens.weight = nn.Parameter(tied.quantised.dequantise(), requires_grad=False)
        return self

    @torch.no_grad()
    def dequantise(self) -> "Transformer":
        """Make quantised weights plain again, in place: value times scale in float32.

        Layers that round their inputs stay as they are: no plain weight is equivalent to them.

        Returns:
            The model itself.
        """
        dequantise_layers(self)
        if self.config.tie_embeddings and self.lm_head is not None and self.lm_head.quantised is None:
            self.lm_head = None
        return self

    @torch.no_grad()
    def pack(self) -> "Transformer":
        """Prepare for inference, once, in place: fuse projections, lay weights out for small batches, check the bits.

        The model scores the same afterwards, up to rounding, and can no longer train. Weights stay resident once,
        except a tied embedding, which also becomes a head. Quantised weights are dequantised to float32, unless their
        layers round inputs too.

        Returns:
            The model itself.

        Raises:
            ValueError: layers round their inputs, but activations are not float32.
        """
        self.dequantise()
        if self.weight_type in (FORMATS | WHOLE) and self.dtype != torch.float32:
            raise ValueError(
                f"{self.weight_type} layers take float32 inputs, and the model is {self.dtype}: use .float()"
            )
        self.lm_head = self.cut_head()
        # There are no complex numbers of half precision.
        pair = self.dtype.itemsize >= 4
        self.model.rotary = RotaryTable(self.config, as_complex=pair)
        for module in self.modules():
            if isinstance(module, SelfAttention):
                module.pack(pair)
        pack_parts(self)
        self.bitwise = self.keeps_bits()
        return self

    def keeps_bits(self) -> bool:
        """Tell whether the packed model's scores depend bitwise on the path only. Cost: about 600 scored nodes."""
        return self.dtype == torch.float32 and self.device.type == "cpu" and has_bitwise_scores(self)

    def cut_head(self) -> Linear:
        """Return a head without the rows that pad the vocabulary."""
        if self.lm_head is None:
            return Linear.of(self.model.embed_tokens.weight[: self.vocab_size])
        return self.lm_head.cut(self.vocab_size)

    def agree(self, given: Sequence[Tensor], cache: PagedKVCache, rows: IntArray, *asked: object) -> None:
        """Check before a pass that all processes are about to score the same; one process has nothing to check.

        Args:
            given: tokens ``[B, M]``, counts ``[B]`` and, if there are any, parents ``[B, M]``.
            cache: of the pass.
            rows: ``[B]``.
            asked: the other arguments of ``score``.
        """

    @torch.no_grad()
    def score(
        self,
        tokens: Tensor,
        parents: Tensor | None,
        num_nodes: Tensor,
        cache: PagedKVCache,
        rows: IntArray,
        want: Want = "all",
        hidden: Sequence[int] = (),
        first: int = 0,
        *,
        layers: tuple[int, int] | None = None,
        stream: Tensor | None = None,
    ) -> Scores:
        """Score trees of nodes ``[B, M]`` in a pass or a part of one; see ``specdec.contracts.LayeredOracle.score``.

        ``hidden`` numbers layers from 0; the residual stream after a layer is returned.

        Raises:
            ValueError: an unknown ``want`` or layer, a row without room, a pending token beyond ``max_context``, or a
                part that does not begin or end as ``stream`` and ``want`` say.

        Guarantee: if ``bitwise`` is True, a node's logits depend bitwise on the ids of its path only, whatever the
            number of parts in which they were scored.

        Cost: one read of the weights, and ``CachedAttention`` per layer; logits take B * N * V * 4 bytes.
        """
        facts = (tokens, num_nodes) if parents is None else (tokens, num_nodes, parents)
        self.agree(facts, cache, rows, want, hidden, first, layers)
        longest = max(cache.lengths[rows].tolist(), default=0)
        check_call(longest, self.max_context, want, hidden, self.num_layers)
        shape = (tokens.shape[0], tokens.shape[1] - first, self.config.hidden_size)
        lowest = first_layer(layers, stream, shape, want, hidden, self.num_layers)
        tree = Tree(tokens, None if is_chain(parents) else parents, num_nodes)
        attend = CachedAttention(self.config, tree, cache, rows, first)
        # Padding nodes may lie beyond the context: their scores mean nothing, but must not fail.
        positions = attend.positions.clamp(max=self.max_context - 1).flatten()
        fed = tokens[:, first:] if first else tokens
        given = None if stream is None else stream.flatten(0, 1)
        streams = self.model(fed.flatten(), positions, min(attend.span, self.max_context), attend, layers, given)
        kept = tuple(streams[layer - lowest].view(*fed.shape, -1) for layer in hidden)
        return Scores(wanted_logits(self.read_out, streams[-1], num_nodes - first, want), kept)
