"""The network of a block drafter: a target's hidden states as context, and a block with bidirectional attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oracles.heads.appending import append_positions
from oracles.heads.markov_head import ConfidenceHead, MarkovHead, MarkovKind
from oracles.transformer.attention import CachedAttention, cache_shape
from oracles.transformer.blocks import Block, Norm, SelfAttention, at_once, embedding
from oracles.transformer.config import TransformerConfig
from oracles.transformer.linear import Linear
from oracles.transformer.rotary import Rope, RotaryTable, rotate
from specdec.cache import PagedKVCache
from specdec.contracts import IntArray, Tree


@dataclass(frozen=True)
class LayerReach:
    """What the tokens of a block see in a layer.

    Attributes:
        window: None: the whole context. Else a number of positions: if a token sees ahead, the last ones of the
            context; if not, the last ones of context and block together up to its own.
        ahead: whether a token sees those after it in its block.

    Deviations: a window that does not see ahead slides with the token, as in servers and in SpecForge's training, where
        it never leaves out tokens of the block; ``speculators`` trains with the window of the block's first token for
        all tokens. A window that sees ahead is the same for all tokens, as ``speculators`` trains it, but servers slide
        it. Only the oldest positions of a window differ, by less than a block.
    """

    window: int | None = None
    ahead: bool = True


@dataclass(frozen=True)
class BlockShape:
    """What a file says about a block drafter.

    Attributes:
        config: of the trunk's layers; ``vocab_size`` is the file's number, padding included.
        layers: of the target, numbered from 0, whose outputs are read.
        layers_said: the same in words, with the file's numbers.
        block_size: number of tokens of a block, the pending one among them.
        mask_id: the id at the other places.
        from_anchor: place i of a block predicts the token after it, so that the pending token's place has a law too,
            and a block gives ``block_size`` tokens. Otherwise a place predicts its own token, and a block gives one
            fewer.
        columns: number of ids that have logits; known once the tensors are read.
        markov: kind of the Markov head; None: there is none.
        markov_rank: its rank.
        confidence: whether there is a confidence head.
        confidence_with_markov: whether it reads the Markov head's embedding too.
        own_embeddings, own_head: whether the file has tables of its own, in place of the oracle's.
        reaches: what each layer sees; empty: every layer sees everything.
    """

    config: TransformerConfig
    layers: tuple[int, ...]
    block_size: int
    mask_id: int
    from_anchor: bool
    columns: int = 0
    layers_said: str = ""
    markov: MarkovKind | None = None
    markov_rank: int = 0
    confidence: bool = False
    confidence_with_markov: bool = False
    own_embeddings: bool = False
    own_head: bool = False
    reaches: tuple[LayerReach, ...] = ()


class BlockAttention(CachedAttention):
    """Attend from the nodes of a block to the cached context and to the block, as far as a layer sees.

    Args:
        reach: what the nodes see.
        config, tree, cache, rows: see ``CachedAttention``.
    """

    def __init__(
        self, reach: LayerReach, config: TransformerConfig, tree: Tree, cache: PagedKVCache, rows: IntArray
    ) -> None:
        self._reach = reach
        super().__init__(config, tree, cache, rows)

    def _visible(self) -> Tensor:
        at, window, ahead = torch.arange(self.span, device=self.start.device), self._reach.window, self._reach.ahead
        ends = self.start + self.tree.size if ahead else self.positions + 1
        seen = at < ends.unsqueeze(2)
        if window is not None:
            seen = seen & (at >= ((self.start if ahead else ends) - window).unsqueeze(2))
        return seen.expand(-1, self.width, -1)


class BlockNetwork(nn.Module):
    """The trunk, which runs a block of tokens after a context, and the parts after it.

    Keys and values of the context are made from the target's hidden states alone. Parameters have the names of
    published checkpoints.

    Args:
        shape: says which parts there are; its layers are of the Llama or Qwen3 family.
        state_size: width of the target's hidden states.

    Source: Chen et al. 2026 (DFlash, arXiv 2602.06036).
    """

    def __init__(self, shape: BlockShape, state_size: int) -> None:
        super().__init__()
        config, size, rank = shape.config, shape.config.hidden_size, shape.markov_rank
        self.config, self.reaches = config, shape.reaches or (LayerReach(),) * config.num_layers
        self.fc = Linear(len(shape.layers) * state_size, size)
        self.hidden_norm = Norm(size, config.norm, config.norm_eps)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = Norm(size, config.norm, config.norm_eps)
        self.rotary = RotaryTable(config)
        self.markov_head: MarkovHead | None = None
        self.confidence_head: ConfidenceHead | None = None
        self.embed_tokens: nn.Embedding | None = None
        self.lm_head: Linear | None = None
        if shape.markov is not None:
            self.markov_head = MarkovHead(shape.markov, config.vocab_size, shape.columns, rank, size)
        if shape.confidence:
            self.confidence_head = ConfidenceHead(size + rank * shape.confidence_with_markov)
        if shape.own_embeddings:
            self.embed_tokens = embedding(config.vocab_size, size)
        if shape.own_head:
            self.lm_head = Linear(size, shape.columns)

    @property
    def blocks(self) -> list[Block]:
        """The layers, in order."""
        parts: list[Any] = list(self.layers)
        return parts

    @property
    def attentions(self) -> list[SelfAttention]:
        """The layers' attentions, in order."""
        return [block.self_attn for block in self.blocks]

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> PagedKVCache:
        """Return an empty cache; a block takes a slot for each of its tokens, after those of the context."""
        like = self.norm.weight
        leading, trailing, slots = cache_shape(self.config, capacity)
        return PagedKVCache.alone(leading, trailing, num_rows, slots, like.dtype, like.device, max_cache_bytes)

    @torch.no_grad()
    def remember(self, cache: PagedKVCache, rows: IntArray, counts: IntArray, states: Sequence[Tensor]) -> None:
        """Put positions into the cache, after the committed ones.

        Args:
            cache: of ``new_cache``.
            rows: ``[B]`` its rows.
            counts: ``[B]`` new positions of each.
            states: ``[B, M, S]`` for each layer of the target that is read, M at least the largest count.

        Cost: one read of ``fc`` and of the layers' key and value projections, for real positions only.
        """
        end = int((cache.lengths[rows] + counts).max())

        def write(line: Tensor, slot: Tensor, at: Tensor, column: Tensor) -> None:
            side_by_side = torch.cat([state[at, column] for state in states], dim=-1)
            context = self.hidden_norm(self.fc(side_by_side.to(cache.payload.dtype)))
            rope = self.rotary.rows(slot, end, context.dtype)
            for layer, part in enumerate(self.attentions):
                made = keys_and_values(part, context, rope)
                for payload, value in zip(cache.payload[layer], made, strict=True):
                    payload[:, line, : self.config.head_size] = value.transpose(0, 1)

        append_positions(cache, rows, counts, write)

    @torch.no_grad()
    def forward(self, cache: PagedKVCache, rows: IntArray, embedded: Tensor) -> Tensor:
        """Return the stream ``[R, W, H]`` after the last layer of blocks ``[R, W, H]``; the cache does not keep blocks.

        Token i of a row's block has position ``cache.lengths[row] + i``.

        Cost: one read of the layers' weights, and of the rows' keys and values.
        """
        batch, width = embedded.shape[:2]
        ids = torch.zeros(batch, width, dtype=torch.int64, device=embedded.device)
        tree = Tree(ids, None, torch.full_like(ids[:, 0], width))
        ways = {reach: BlockAttention(reach, self.config, tree, cache, rows) for reach in self.reaches}
        attend = ways[self.reaches[0]]
        rope = self.rotary.rows(attend.positions.flatten(), attend.span, embedded.dtype)
        stream = embedded.flatten(0, 1)
        for block, reach in zip(self.layers, self.reaches, strict=True):
            stream = block(stream, rope, ways[reach])
        return stream.view(batch, width, -1)

    @torch.no_grad()
    def normalise(self, stream: Tensor) -> Tensor:
        """Return a stream ``[..., H]`` after the last norm."""
        out: Tensor = self.norm(stream)
        return out

    @property
    def rounded_modules(self) -> list[nn.Module]:
        """The parts whose weights can be rounded: the trunk and the read-out."""
        return [self.fc, self.layers, *([] if self.lm_head is None else [self.lm_head])]

    def shed(self) -> None:
        """Free the parts that compiled code computes, and compute the rest, including the last norm, in float32."""
        del self.fc
        self.layers, self.lm_head, self.embed_tokens = nn.ModuleList(), None, None
        self.float().requires_grad_(False)

    def own_read_out(self, stream: Tensor) -> Tensor:
        """Return logits ``[R, columns]`` of a stream ``[R, H]`` by the file's own head."""
        assert self.lm_head is not None
        logits: Tensor = self.lm_head(self.normalise(stream))
        return logits


def keys_and_values(part: SelfAttention, normed: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """Return rotated keys, and values, ``[P, K, D]`` of a normed stream ``[P, H]``."""
    assert part.k_proj is not None
    assert part.v_proj is not None
    shape = (len(normed), -1, part.config.head_size)
    key, value = part.k_proj(normed).view(shape), part.v_proj(normed).view(shape)
    key = key if part.k_norm is None else at_once(part.k_norm, key)
    return rotate(key, rope, part.config.rope_interleaved), value
