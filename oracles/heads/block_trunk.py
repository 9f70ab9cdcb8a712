"""The trunk of a block drafter: a target's hidden states as context, and a block with bidirectional attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oracles.heads.appending import append_positions
from oracles.transformer.attention import CachedAttention, cache_shape
from oracles.transformer.blocks import Block, Norm, SelfAttention, at_once
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


class BlockTrunk(nn.Module):
    """Run a block of tokens after a context whose keys and values are made from the target's hidden states alone.

    Parameters have the names of published checkpoints.

    Args:
        config: of the layers, of the Llama or Qwen3 family, without windows.
        num_states: number of hidden states of a position.
        state_size: width of each.
        reaches: what each layer sees; empty: the whole context and block, in every layer.

    Source: Chen et al. 2026 (DFlash, arXiv 2602.06036).
    """

    def __init__(
        self, config: TransformerConfig, num_states: int, state_size: int, reaches: tuple[LayerReach, ...] = ()
    ) -> None:
        super().__init__()
        self.config, self.reaches = config, reaches or (LayerReach(),) * config.num_layers
        self.fc = Linear(num_states * state_size, config.hidden_size)
        self.hidden_norm = Norm(config.hidden_size, config.norm, config.norm_eps)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = Norm(config.hidden_size, config.norm, config.norm_eps)
        self.rotary = RotaryTable(config)

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


def keys_and_values(part: SelfAttention, normed: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """Return rotated keys, and values, ``[P, K, D]`` of a normed stream ``[P, H]``."""
    assert part.k_proj is not None
    assert part.v_proj is not None
    shape = (len(normed), -1, part.config.head_size)
    key, value = part.k_proj(normed).view(shape), part.v_proj(normed).view(shape)
    key = key if part.k_norm is None else at_once(part.k_norm, key)
    return rotate(key, rope, part.config.rope_interleaved), value
