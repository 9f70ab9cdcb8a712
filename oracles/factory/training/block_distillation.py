"""Block drafters in training: blocks after many anchors of each window learn the oracle's laws along the text."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from oracles.factory.training.anchored import anchored_streams
from oracles.factory.training.head_distillation import Drafted, HeadDistillation, Lesson, ReadOut, Roots
from oracles.heads import BlockNetwork, BlockShape


class BlockDistillation(HeadDistillation):
    """A block drafter, with a Markov head or without, that learns from many anchors of each window.

    Args:
        lesson: what it learns from; ``num_steps`` are the tokens of a block.
        network: of ``new_dspark``.
        shape: of the network; blocks give a token from the anchor on.
        num_anchors: of a window, at most: spread evenly over the places that are followed by a token that counts.

    Source: DeepSpec 2026 (DSpark, arXiv 2607.05147); Chen et al. 2026 (DFlash, arXiv 2602.06036).
    Deviations: anchors are spread, not drawn, so that a step depends on its windows alone.
    """

    model: BlockNetwork

    def __init__(self, lesson: Lesson, network: BlockNetwork, shape: BlockShape, num_anchors: int) -> None:
        super().__init__(lesson, network)
        self.shape, self.num_anchors = shape, num_anchors
        self._written = ReadOut(lesson, network.lm_head)
        self._mask = torch.tensor(shape.mask_id, device=self.oracle.device)

    @property
    def identity(self) -> str:
        """What a resumed run must share beside recipe and batches."""
        one, shape = self.lesson, self.shape
        return (
            f"dspark head by {one.loss}, blocks of {shape.block_size} after {self.num_anchors} anchors, discount "
            f"{one.discount}, layers {one.layers}, {shape.config.num_layers} of its own, Markov rank "
            f"{shape.markov_rank}, mask {shape.mask_id}, {one.num_written} ids, {self._written.whose} head, "
            + one.reading
        )

    @property
    def rounded(self) -> Sequence[nn.Module]:
        """The trunk and the read-out, and not what is behind them."""
        return self.model.rounded

    def roots(self, counts: Tensor) -> Roots:
        """Return the anchors: places that are followed by a token that counts, as evenly as ``num_anchors`` allow."""
        rows, places = [], []
        for row, counted in enumerate(counts[:, 2 : counts.shape[1] + 1 - self.num_steps]):
            found = counted.nonzero()[:, 0] + 1
            if len(found) > self.num_anchors:
                chosen = torch.linspace(0, len(found) - 1, self.num_anchors, device=found.device)
                found = found[chosen.round().long()]
            rows.append(torch.full_like(found, row))
            places.append(found)
        return Roots(torch.cat(rows), torch.cat(places))

    def draft(self, layers: Sequence[Tensor], inputs: Tensor, roots: Roots) -> Iterator[Drafted]:
        """Yield what the blocks say of each token, the text's own before it."""
        normed = self.model.norm(torch.cat(list(self._streams(layers, inputs, roots))))
        markov = self.model.markov_head
        state = None if markov is None else markov.first_state(len(roots.at))
        for step in range(self.num_steps):
            previous, stream, bias = inputs[roots.row, roots.at + step], normed[:, step], None
            if markov is not None:
                bias, state = markov(previous, stream, state)

            def say(
                known: Tensor, previous: Tensor = previous, stream: Tensor = stream, bias: Tensor | None = bias
            ) -> tuple[Tensor, Tensor | None]:
                logits = self._written(stream[known])
                logits = logits if bias is None else logits.float() + bias[known]
                return logits, self._believed(stream[known], previous[known])

            yield say

    def _streams(self, layers: Sequence[Tensor], inputs: Tensor, roots: Roots) -> Iterator[Tensor]:
        """Yield the streams ``[A, W, H]`` of the blocks of each window in which some begin, after an empty one."""
        masks = self.oracle.embed(self._mask)
        yield masks.expand(0, self.num_steps, -1)
        for row in dict.fromkeys(roots.row.tolist()):
            ids, anchors = inputs[row], roots.at[roots.row == row]
            embedded = masks.expand(len(anchors), self.num_steps, -1).clone()
            embedded[:, 0] = self.oracle.embed(ids[anchors])
            yield anchored_streams(self.model, [layer[row] for layer in layers], embedded, anchors)

    def _believed(self, stream: Tensor, previous: Tensor) -> Tensor | None:
        """Return the chances ``[M]`` that drafted tokens stand, as the head tells them; they do not move the trunk."""
        if self.model.confidence_head is None:
            return None
        read = stream.detach()
        if self.shape.confidence_with_markov:
            assert self.model.markov_head is not None
            read = torch.cat([read, self.model.markov_head.markov_w1(previous).detach()], dim=-1)
        chance: Tensor = self.model.confidence_head(read)
        return chance
