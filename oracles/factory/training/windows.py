"""Which tokens a training step reads: a pure function of the seed and the step, so that a run can be resumed."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from oracles.checkpoints.tokenization import end_of_text_id

# Texts that the tokenizer reads at once; all at once, the pieces of the whole corpus would be in memory.
TEXTS_AT_ONCE = 256


def token_stream(texts: Iterable[str], tokenizer: Tokenizer) -> Tensor:
    """Return the ids of all texts in one row ``[S]`` int32, each text between two end-of-text tokens."""
    end = end_of_text_id(tokenizer)
    queue, parts = list(texts), [np.array([end], np.int32)]
    for first in range(0, len(queue), TEXTS_AT_ONCE):
        for encoding in tokenizer.encode_batch_fast(queue[first : first + TEXTS_AT_ONCE]):
            parts.append(np.array([*encoding.ids, end], np.int32))
    return torch.from_numpy(np.concatenate(parts))


@dataclass(frozen=True)
class WindowPlan:
    """The shape of every step of a run.

    Args:
        tokens_per_step: positions predicted in a step, a multiple of both lengths.
        length: of a window.
        long_length: of a window in the last part of the run, which teaches distant positions.
        long_share: that part, as a share of all steps.

    Raises:
        ValueError: a length does not divide ``tokens_per_step``.
    """

    tokens_per_step: int = 4096
    length: int = 512
    long_length: int = 2048
    long_share: float = 0.1

    def __post_init__(self) -> None:
        for name in ("length", "long_length"):
            if self.tokens_per_step % getattr(self, name):
                raise ValueError(f"{name} {getattr(self, name)} does not divide tokens_per_step {self.tokens_per_step}")

    def halve(self) -> "WindowPlan":
        """Return the plan with half as many tokens in each step."""
        return replace(self, tokens_per_step=self.tokens_per_step // 2)

    def rows_at(self, step: int, num_steps: int) -> tuple[int, int, int]:
        """Return (window length, number of rows, rows of that length read before this step)."""
        first_long = round(num_steps * (1 - self.long_share))
        is_long = step >= first_long
        length = self.long_length if is_long else self.length
        num_rows = self.tokens_per_step // length
        return length, num_rows, (step - first_long if is_long else step) * num_rows


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of one stream of text (``oracles.factory.training.loop.Batches``).

    Args:
        plan: their shape.
        stream: ids ``[S]``.
        seed: of their order.
    """

    plan: WindowPlan
    stream: Tensor
    seed: int

    @property
    def identity(self) -> str:
        """What a resumed run must share."""
        return f"{self.plan} of {len(self.stream)} tokens in the order of seed {self.seed}"

    def batch(self, step: int, num_steps: int) -> Tensor:
        """Return the windows of a step, one more token than positions predicted, ``[rows, length + 1]`` int64."""
        length, num_rows, first = self.plan.rows_at(step, num_steps)
        return windows_of(self.stream, length, range(first, first + num_rows), self.seed)


@dataclass(frozen=True, eq=False)
class MixedBatches:
    """Batches of two kinds side by side: the rows of the first, then those of the second."""

    first: Windows
    second: Windows

    @property
    def identity(self) -> str:
        """What a resumed run must share."""
        return f"{self.first.identity}; {self.second.identity}"

    def batch(self, step: int, num_steps: int) -> Tensor:
        """Return the rows of both, of one length, ``[rows, length + 1]`` int64."""
        return torch.cat([self.first.batch(step, num_steps), self.second.batch(step, num_steps)])


def windows_of(stream: Tensor, length: int, rows: range, seed: int) -> Tensor:
    """Return the windows of these numbers, each with the token after it, ``[rows, length + 1]`` int64.

    Windows run through the stream ``[S]`` in epochs: each epoch cuts it at a random offset into windows that do not
    overlap, and reads them in random order.

    Raises:
        ValueError: the stream is shorter than three windows.
    """
    starts = (_window_start(len(stream), length, row, seed) for row in rows)
    return torch.stack([stream[start : start + length + 1] for start in starts]).long()


def _window_start(num_tokens: int, length: int, row: int, seed: int) -> int:
    per_epoch = (num_tokens - 1) // length - 1
    if per_epoch < 1:
        raise ValueError(f"a stream of {num_tokens} tokens is too short for windows of {length}; shorten the windows")
    epoch, index = divmod(row, per_epoch)
    offset, order = _epoch(per_epoch, length, epoch, seed)
    return offset + length * int(order[index])


@lru_cache(maxsize=4)
def _epoch(count: int, length: int, epoch: int, seed: int) -> tuple[int, NDArray[np.int64]]:
    """Return where the first of ``count`` windows starts, and their order."""
    generator = np.random.default_rng((seed, length, epoch))
    return int(generator.integers(length)), generator.permutation(count)
