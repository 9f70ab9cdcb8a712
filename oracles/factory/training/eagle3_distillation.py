"""EAGLE-3 heads in training: they run on over their own features, from every position of a text."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from oracles.factory.training.head_distillation import Drafted, HeadDistillation, Lesson, ReadOut, Roots
from oracles.factory.training.unrolled import unroll
from oracles.heads import Eagle3Network


class Eagle3Distillation(HeadDistillation):
    """An EAGLE-3 head that learns by training-time test: see ``unroll``.

    Args:
        lesson: what it learns from.
        network: of ``new_eagle3``.

    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840).
    """

    model: Eagle3Network

    def __init__(self, lesson: Lesson, network: Eagle3Network) -> None:
        super().__init__(lesson, network)
        self._written = ReadOut(lesson, network.lm_head)

    @property
    def identity(self) -> str:
        """What a resumed run must share beside recipe and batches."""
        one = self.lesson
        return (
            f"eagle3 head by {one.loss}, {one.num_steps} steps, discount {one.discount}, layers {one.layers}, "
            f"{one.num_written} ids, {self._written.whose} head, {one.reading}"
        )

    def draft(self, layers: Sequence[Tensor], inputs: Tensor, roots: Roots) -> Iterator[Drafted]:
        """Yield what each unrolled step says."""
        for stream in unroll(self.model, self.oracle.embed, layers, inputs, self.num_steps):
            flat = stream.flatten(0, 1)

            def say(known: Tensor, flat: Tensor = flat) -> tuple[Tensor, None]:
                return self._written(self.model.norm(flat[known])), None

            yield say
