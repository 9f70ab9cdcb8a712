"""Exit heads in training: adapters after several layers of an oracle learn its laws side by side."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor, nn

from oracles.factory.training.head_distillation import Drafted, HeadDistillation, Roots
from oracles.factory.training.lesson import Lesson
from oracles.heads import HeadShape, save_head
from oracles.transformer.blocks import Adapter


def last_layers(exits: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Return the last layer below each of several exit heads, whose layers below are counted.

    Raises:
        ValueError: no layer of so many is above a head, or none below.
    """
    last = num_layers - 1
    if wrong := [k for k in exits if not 1 <= k <= last]:
        raise ValueError(f"--num-layers {wrong}: the oracle has {num_layers} layers, so give 1..{last}")
    return tuple(k - 1 for k in exits)


class ExitDistillation(HeadDistillation):
    """Adapters that learn to predict after k layers what the oracle predicts after all; they share nothing else.

    Args:
        lesson: what they learn from; ``layers`` are of ``last_layers``, and all ids are written.
        inner_size: width of every adapter.
        seed: of their initial weights.

    Source: Liu et al. 2024 (Kangaroo, arXiv 2404.18911), with the deviations of ``ExitHead``.
    """

    def __init__(self, lesson: Lesson, inner_size: int, seed: int) -> None:
        oracle, self.inner_size = lesson.oracle, inner_size
        self.adapters = {str(layer + 1): Adapter(oracle.config, inner_size, seed) for layer in lesson.layers}
        super().__init__(lesson, nn.ModuleDict(self.adapters).to(oracle.device))

    @property
    def identity(self) -> str:
        """What a resumed run must share besides recipe and batches."""
        one = self.lesson
        return (
            f"exit heads of width {self.inner_size} after layers {', '.join(self.adapters)} by {one.loss}, "
            + one.reading
        )

    @property
    def offsets(self) -> dict[str, int]:
        """The heads, all of which predict the token after a root."""
        return {f"after_{k}": 0 for k in self.adapters}

    def draft(
        self, layers: Sequence[Tensor], inputs: Tensor, roots: Roots, known: Sequence[Tensor]
    ) -> Iterator[Drafted]:
        """Yield each head's logits from the root's own stream; see ``HeadDistillation.draft``."""
        for adapter, stream, chosen in zip(self.adapters.values(), layers, known, strict=True):
            yield self.oracle.read_out(adapter(stream[roots.row[chosen], roots.at[chosen]])), None

    def save(self, folder: Path) -> None:
        """Write every head to a folder of its own, which is named by the number of layers below it."""
        for name, adapter in self.adapters.items():
            save_head(adapter, HeadShape.of(self.oracle.config, int(name), self.inner_size), folder / name)
