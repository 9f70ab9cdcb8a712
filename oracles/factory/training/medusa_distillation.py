"""Medusa's heads in training: each says a token further ahead, from the last hidden state alone."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from oracles.factory.training.head_distillation import Drafted, HeadDistillation, Roots
from oracles.heads import MedusaNetwork


class MedusaDistillation(HeadDistillation):
    """Medusa's heads, which learn side by side from every position of a text.

    Args:
        lesson: what they learn from; ``layers`` is the last one, and all ids are written.
        network: of ``new_medusa``, with ``num_steps`` heads.

    Source: Cai et al. 2024 (Medusa-1, arXiv 2401.10774).
    Deviations: the paper's heads learn the text; these learn the oracle's law of it unless the loss is ``ce``.
    """

    model: MedusaNetwork

    @property
    def identity(self) -> str:
        """What a resumed run must share beside recipe and batches."""
        one = self.lesson
        return (
            f"{one.num_steps} heads of medusa by {one.loss}, discount {one.discount}, {len(self.model.blocks[0])} "  # type: ignore[arg-type]
            f"residual blocks, {one.reading}"
        )

    def draft(self, layers: Sequence[Tensor], inputs: Tensor, roots: Roots) -> Iterator[Drafted]:
        """Yield what each head says, of the state before the root."""
        normed = self.oracle.last_norm(layers[0])
        for head in range(self.num_steps):

            def say(known: Tensor, head: int = head) -> tuple[Tensor, None]:
                return self.model(head, normed[roots.row[known], roots.at[known] - 1]), None

            yield say
