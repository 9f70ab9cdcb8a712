"""What a head learns from: a text, a loss, and an oracle, whose layers and laws it reads and whose rows it may use."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from oracles.factory.training.head_losses import read_mixture
from oracles.factory.training.head_text import HeadText
from oracles.quantisation import Format
from oracles.quantisation.quantised import round_straight_through
from oracles.transformer.eager import Transformer
from oracles.transformer.linear import Linear
from specdec.cache import prefill
from specdec.contracts import HostOracle, Needs

# Of windows ``[B, T]`` row by row: the layers' outputs ``[T, D]`` each, and logits ``[T, V]``.
Reader = Callable[[Tensor], Iterator[tuple[list[Tensor], Tensor]]]


def eager_reader(oracle: Transformer, layers: tuple[int, ...]) -> Reader:
    """Return the pass of training: all windows at once, on any device; logits in float32, whatever the context's."""

    def read(windows: Tensor) -> Iterator[tuple[list[Tensor], Tensor]]:
        streams = oracle.streams(windows)
        for row in range(len(windows)):
            with torch.autocast(windows.device.type, enabled=False):
                logits = oracle.read_out(streams[-1][row])
            yield [streams[layer][row] for layer in layers], logits

    return read


def served_reader(oracle: HostOracle, layers: tuple[int, ...]) -> Reader:
    """Return the pass of serving, whatever its backend and arithmetic: window by window, in float32 at least."""
    rows, needs = np.zeros(1, dtype=np.int64), Needs(logits=True, hidden=layers)

    def read(windows: Tensor) -> Iterator[tuple[list[Tensor], Tensor]]:
        cache = oracle.new_cache(1, windows.shape[1])
        for window in windows.cpu().numpy():
            # The last id of a prompt is pending and is not read.
            scores, _ = prefill(oracle, cache, rows, [np.append(window, 0)], needs)
            assert scores is not None
            assert scores.logits is not None
            yield [layer[0].float() for layer in scores.hidden], scores.logits[0]
            cache.reset(rows)

    return read


@dataclass(frozen=True, eq=False)
class Lesson:
    """What a head learns from, whatever its kind.

    Attributes:
        oracle: in training form, on the device.
        layers: the layers whose outputs the head reads.
        target_ids: ``[R]`` the ids that it writes; None: all ids.
        text: what is read.
        num_steps: number of tokens in a draft, k.
        loss: as ``read_mixture`` reads it.
        discount: factor by which each further token counts less.
        precision: of the matrix products.
        read: the pass that gives features and laws; None: the oracle's own, in that precision.
        learn_as: format to which every product rounds the weights of the head's linear layers, as serving will; None:
            they are not rounded.

    Raises:
        ValueError: an unknown loss, or a layer that the oracle lacks.
    """

    oracle: Transformer
    layers: tuple[int, ...]
    target_ids: Tensor | None
    text: HeadText
    num_steps: int
    loss: str
    discount: float
    precision: str
    read: Reader | None = None
    learn_as: Format | None = None

    def __post_init__(self) -> None:
        read_mixture(self.loss)
        if wrong := [layer for layer in self.layers if not 0 <= layer < self.oracle.num_layers]:
            raise ValueError(
                f"layers {wrong}: the oracle has the outputs of layers 0..{self.oracle.num_layers - 1}; choose among "
                "these (--layers)"
            )

    @property
    def reading(self) -> str:
        """What is read, and in which arithmetic, for ``HeadDistillation.identity``."""
        served = "" if self.read is None else ", served"
        return f"{len(self.text.ids)} tokens of text{served}{f', as {self.learn_as.name}' if self.learn_as else ''}"

    @property
    def num_written(self) -> int:
        """Number of ids that the head writes."""
        return self.oracle.vocab_size if self.target_ids is None else len(self.target_ids)


def head_rows(oracle: Transformer, target_ids: Tensor | None) -> Tensor:
    """Return the rows ``[R, D]`` of the oracle's head for some ids, or for all including padding.

    Raises:
        ValueError: they are not plain numbers, or have a bias.
    """
    head = oracle.lm_head
    rows = oracle.model.embed_tokens.weight if head is None else head.weight
    if rows is None or (head is not None and head.bias is not None):
        raise ValueError("the oracle's head has a bias, or no plain weights: heads are trained on plain checkpoints")
    rows = rows.detach()
    return rows if target_ids is None else rows[target_ids.to(rows.device)]


class ReadOut:
    """Logits of the ids that a head writes: by rows of its own, or by those of the oracle.

    Rows of some ids are copied into a head and rounded with it; a head that writes all ids reads the oracle's in place.

    Args:
        lesson: its oracle lends rows.
        own: the head's own layer; None: it has none.
    """

    def __init__(self, lesson: Lesson, own: Linear | None) -> None:
        self._own, self._count = own, lesson.num_written
        self._borrowed: Tensor | None = None
        if own is None:
            rows = head_rows(lesson.oracle, lesson.target_ids)[: self._count]
            self._borrowed = round_straight_through(rows, None if lesson.target_ids is None else lesson.learn_as)

    @property
    def whose(self) -> str:
        """ "own" or "borrowed"."""
        return "own" if self._borrowed is None else "borrowed"

    def __call__(self, normed: Tensor) -> Tensor:
        """Return ``[M, R]`` of normed streams ``[M, H]``."""
        rows = self._borrowed
        if rows is None:
            assert self._own is not None
            assert self._own.weight is not None
            rows = round_straight_through(self._own.weight, self._own.learns_as)[: self._count]
        return functional.linear(normed, rows)
