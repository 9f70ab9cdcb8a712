"""Block drafters (DSpark): their config, their first weights, and their training.

Blocks after many anchors of each window learn the oracle's laws along the text.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oracles.factory.training.export import llama_config
from oracles.factory.training.head_distillation import Drafted, HeadDistillation, Roots
from oracles.factory.training.head_export import begin_weights, serving
from oracles.factory.training.head_losses import read_mixture
from oracles.factory.training.lesson import Lesson, ReadOut
from oracles.heads import BlockNetwork, BlockShape
from oracles.heads.block_network import keys_and_values
from oracles.transformer.config import TransformerConfig
from specdec.contracts import BITWISE_NODES


def dspark_shape(
    lesson: Lesson, *, num_layers: int, intermediate_size: int, markov_rank: int, mask_id: int, own_head: bool
) -> BlockShape:
    """Return the shape of a head: layers of Qwen3's kind with the oracle's heads.

    They have no biases, windows or stretched rotations, nor anything else that ``describe_dspark`` does not describe.

    Args:
        lesson: what it learns from. If its loss has ``bce``, the head gives confidences, which read the Markov head's
            embedding too.
        num_layers, intermediate_size: of its own layers, and the width of their MLPs.
        markov_rank: of its Markov head.
        mask_id: the id at all places of a block after its first.
        own_head: whether it has rows of its own.

    Raises:
        ValueError: a block is longer than any drafter can run.
    """
    if not 1 <= lesson.num_steps <= BITWISE_NODES:
        raise ValueError(f"--num-draft-tokens is {lesson.num_steps}; blocks hold 1..{BITWISE_NODES} tokens")
    oracle, own, confidence = lesson.oracle, lesson.oracle.config, "bce" in read_mixture(lesson.loss)
    config = TransformerConfig(
        vocab_size=oracle.embedding_rows, hidden_size=own.hidden_size, num_layers=num_layers,
        num_heads=own.num_heads, num_kv_heads=own.kv_heads, head_dim=own.head_size,
        intermediate_size=intermediate_size, max_context=own.max_context, norm_eps=own.norm_eps,
        rope_theta=own.rope_theta, qk_norm=True,
    )  # fmt: skip
    return BlockShape(
        config, lesson.layers, lesson.num_steps, mask_id, from_anchor=True, columns=lesson.num_written,
        markov="vanilla", markov_rank=markov_rank, confidence=confidence, confidence_with_markov=confidence,
        own_head=own_head,
    )  # fmt: skip


def describe_dspark(shape: BlockShape, name: str) -> dict[str, Any]:
    """Return the ``config.json`` of a head in the format of ``speculators``, which counts inputs of layers.

    Args:
        shape: of ``dspark_shape``.
        name: of the oracle, as servers know it.
    """
    layers = llama_config(shape.config) | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    del layers["mlp_bias"]
    return {
        "architectures": ["DSparkDraftModel"],
        "model_type": "speculators",
        "speculators_model_type": "dspark",
        "speculators_config": serving("dspark", name, shape.block_size),
        "transformer_layer_config": layers,
        "draft_vocab_size": shape.columns,
        "block_size": shape.block_size,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in shape.layers],
        "mask_token_id": shape.mask_id,
        "sliding_window_non_causal": False,
        "sample_from_anchor": True,
        "markov_rank": shape.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": shape.confidence,
        "confidence_head_with_markov": shape.confidence_with_markov,
    }


def new_dspark(shape: BlockShape, lesson: Lesson, seed: int) -> BlockNetwork:
    """Return a head in training form whose context at first is the highest layer that it reads; confidences are 1/2.

    Args:
        shape: from ``dspark_shape``.
        lesson: what it learns from; the oracle lends embeddings and, unless the shape has its own head, its rows.
        seed: of the weights that are not taken from the oracle.
    """
    network = BlockNetwork(shape, lesson.oracle.hidden_size)
    begin_weights(network, lesson, seed)
    with torch.no_grad():
        if network.markov_head is not None:
            for parameter in network.markov_head.markov_w2.parameters():
                parameter.zero_()
        if network.confidence_head is not None:
            for parameter in network.confidence_head.parameters():
                parameter.zero_()
    return network.to(lesson.oracle.device)


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


def anchored_streams(trunk: BlockNetwork, layers: Sequence[Tensor], embedded: Tensor, anchors: Tensor) -> Tensor:
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


class BlockDistillation(HeadDistillation):
    """A block drafter, with a Markov head or without, that learns from many anchors of each window.

    Args:
        lesson: what it learns from; ``num_steps`` are the tokens of a block.
        network: of ``new_dspark``.
        shape: of the network; blocks give a token from the anchor on.
        num_anchors: the most in a window, spread evenly over the places before a token that counts.

    Source: DeepSpec 2026 (DSpark, arXiv 2607.05147); Chen et al. 2026 (DFlash, arXiv 2602.06036).
    Deviations: anchors are spread evenly, not drawn, so that a step depends only on its windows.
    """

    model: BlockNetwork

    def __init__(self, lesson: Lesson, network: BlockNetwork, shape: BlockShape, num_anchors: int) -> None:
        super().__init__(lesson, network)
        self.shape, self.num_anchors = shape, num_anchors
        self._written = ReadOut(lesson, network.lm_head)
        self._mask = torch.tensor(shape.mask_id, device=self.oracle.device)

    @property
    def identity(self) -> str:
        """What a resumed run must share besides recipe and batches."""
        one, shape = self.lesson, self.shape
        return (
            f"dspark head by {one.loss}, blocks of {shape.block_size} after {self.num_anchors} anchors, discount "
            f"{one.discount}, layers {one.layers}, {shape.config.num_layers} of its own, Markov rank "
            f"{shape.markov_rank}, mask {shape.mask_id}, {one.num_written} ids, {self._written.whose} head, "
            + one.reading
        )

    @property
    def rounded_modules(self) -> Sequence[nn.Module]:
        """The trunk and the read-out, but not the parts after them."""
        return self.model.rounded_modules

    def roots(self, counts: Tensor) -> Roots:
        """Return the anchors in windows; ``counts`` ``[B, T + 1]`` bool says which of their ids count.

        In a window at most ``num_anchors`` places before a token that counts are taken, spread evenly.
        """
        rows, places = [], []
        for row, counted in enumerate(counts[:, 2 : counts.shape[1] + 1 - self.num_steps]):
            found = counted.nonzero()[:, 0] + 1
            if len(found) > self.num_anchors:
                chosen = torch.linspace(0, len(found) - 1, self.num_anchors, device=found.device)
                found = found[chosen.round().long()]
            rows.append(torch.full_like(found, row))
            places.append(found)
        return Roots(torch.cat(rows), torch.cat(places))

    def draft(
        self, layers: Sequence[Tensor], inputs: Tensor, roots: Roots, known: Sequence[Tensor]
    ) -> Iterator[Drafted]:
        """Yield the blocks' logits of each token, given the text's own before it; see ``HeadDistillation.draft``."""
        normed = self.model.norm(torch.cat(list(self._streams(layers, inputs, roots))))
        markov = self.model.markov_head
        state = None if markov is None else markov.first_state(len(roots.at))
        for step, chosen in enumerate(known):
            previous, stream, bias = inputs[roots.row, roots.at + step], normed[:, step], None
            if markov is not None:
                bias, state = markov(previous, stream, state)
            logits = self._written(stream[chosen])
            logits = logits if bias is None else logits.float() + bias[chosen]
            yield logits, self._confidences(stream[chosen], previous[chosen])

    def _streams(self, layers: Sequence[Tensor], inputs: Tensor, roots: Roots) -> Iterator[Tensor]:
        """Yield the streams ``[A, W, H]`` of the blocks of each window that has some, after an empty stream."""
        masks = self.oracle.embed(self._mask)
        yield masks.expand(0, self.num_steps, -1)
        for row in dict.fromkeys(roots.row.tolist()):
            ids, anchors = inputs[row], roots.at[roots.row == row]
            embedded = masks.expand(len(anchors), self.num_steps, -1).clone()
            embedded[:, 0] = self.oracle.embed(ids[anchors])
            yield anchored_streams(self.model, [layer[row] for layer in layers], embedded, anchors)

    def _confidences(self, stream: Tensor, previous: Tensor) -> Tensor | None:
        """Return the head's confidences ``[M]`` in drafted tokens; their gradient does not reach the trunk."""
        if self.model.confidence_head is None:
            return None
        read = stream.detach()
        if self.shape.confidence_with_markov:
            assert self.model.markov_head is not None
            read = torch.cat([read, self.model.markov_head.markov_w1(previous).detach()], dim=-1)
        chance: Tensor = self.model.confidence_head(read)
        return chance
