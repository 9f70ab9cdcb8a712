"""Block drafters over whole windows: blocks after many anchors, with contexts that are computed once."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from oracles.heads.block_trunk import BlockTrunk, keys_and_values


class AnchoredAttention:
    """Attend from the blocks of many anchors in one window: to the context before each block, and to the block itself.

    Args:
        context: keys and values ``[T, K, D]`` of each layer, of all positions of the window.
        anchors: ``[A]`` the position of the first token of each block, which is not in its context.

    Cost: O(A W (T + W)) per head for blocks of W tokens; the weights stay in memory until the backward pass.
    """

    def __init__(self, context: Sequence[tuple[Tensor, Tensor]], anchors: Tensor) -> None:
        self._context = context
        length = len(context[0][0])
        # [1, A, 1, 1, T]
        self._later = (torch.arange(length, device=anchors.device) >= anchors.unsqueeze(1))[None, :, None, None]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``[A, W, H * D]`` from ``[A, W, H, D]`` and ``[A, W, K, D]``."""
        before, said = self._context[layer]
        (blocks, width, _, size), (length, kv_heads) = query.shape, before.shape[:2]
        # [A, W, H, D] -> [K, A, G, W, D]
        asked = query.reshape(blocks, width, kv_heads, -1, size).permute(2, 0, 3, 1, 4)
        shape = asked.shape[:-1]
        far = torch.bmm(asked.flatten(1, 3), before.permute(1, 2, 0)).view(*shape, length)
        own = key.permute(2, 0, 3, 1).flatten(0, 1)  # [K * A, D, W]
        near = torch.bmm(asked.flatten(0, 1).flatten(1, 2), own).view(*shape, width)
        scores = torch.cat([far.float().masked_fill(self._later, -math.inf), near.float()], dim=-1)
        weights = (scores / math.sqrt(size)).softmax(-1)
        out = torch.bmm(weights[..., :length].flatten(1, 3), said.transpose(0, 1)).view(*shape, size)
        beside = weights[..., length:].flatten(0, 1).flatten(1, 2)
        out = out + torch.bmm(beside, value.permute(2, 0, 1, 3).flatten(0, 1)).view(*shape, size)
        # [K, A, G, W, D] -> [A, W, H * D]
        return out.permute(1, 3, 0, 2, 4).flatten(2)


def anchored_streams(trunk: BlockTrunk, layers: Sequence[Tensor], embedded: Tensor, anchors: Tensor) -> Tensor:
    """Return the streams ``[A, W, H]`` after the last layer of blocks that begin at anchors of one window.

    Args:
        trunk: in training form.
        layers: the oracle's hidden states ``[T, D]``, one for each layer.
        embedded: ``[A, W, H]`` the blocks' own tokens: the one at the anchor, then masks.
        anchors: ``[A]``, at least 1; a block sees the hidden states of the positions before its anchor.

    Guarantee: the streams are those that ``DFlashHead`` computes at decoding time, up to rounding.
    Source: Chen et al. 2026 (DFlash, arXiv 2602.06036), training with many anchors in a sequence.
    """
    length, width = len(layers[0]), embedded.shape[1]
    # Under autocast the products are narrower than the streams, and the norms' weights.
    context = trunk.hidden_norm(trunk.fc(torch.cat(list(layers), dim=-1)).to(embedded.dtype))
    rope = trunk.rotary.rows(torch.arange(length, device=anchors.device), length + width, context.dtype)
    pairs = [keys_and_values(part, context, rope) for part in trunk.attentions]
    places = anchors.unsqueeze(1) + torch.arange(width, device=anchors.device)
    rope = trunk.rotary.rows(places, length + width, context.dtype)
    stream, attend = embedded, AnchoredAttention(pairs, anchors)
    for block in trunk.layers:
        stream = block(stream, rope, attend)
    return stream
