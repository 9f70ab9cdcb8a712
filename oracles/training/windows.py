"""Which tokens a training step reads: a pure function of the seed and the step, so that a run can be resumed."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from oracles.tokenization import end_of_text_id

REPEAT_EVERY = 512
MIN_REPEAT, MAX_REPEAT = 32, 224


def token_stream(texts: Iterable[str], tokenizer: Tokenizer) -> Tensor:
    """Return the ids of all texts in one row ``[S]`` int64, each text between two end-of-text tokens."""
    end = end_of_text_id(tokenizer)
    ids = [end]
    for encoding in tokenizer.encode_batch(list(texts)):
        ids += [*encoding.ids, end]
    return torch.tensor(ids)


@dataclass(frozen=True)
class WindowPlan:
    """The shape of every step of a run.

    Args:
        tokens_per_step: positions predicted in a step, a multiple of both lengths.
        length: length of a window.
        long_length: length of a window in the last part of the run, which teaches far positions.
        long_share: that part, as a share of all steps.
        repeat_share: expected number of copies that follow a part of every ``REPEAT_EVERY`` tokens, with one id
            renamed. They teach copying and editing, for which the corpus alone is small.

    Raises:
        ValueError: where a length does not divide ``tokens_per_step``.
    """

    tokens_per_step: int = 4096
    length: int = 512
    long_length: int = 2048
    long_share: float = 0.2
    repeat_share: float = 0.25

    def __post_init__(self) -> None:
        for name in ("length", "long_length"):
            if self.tokens_per_step % getattr(self, name):
                raise ValueError(f"{name} {getattr(self, name)} does not divide tokens_per_step {self.tokens_per_step}")

    def rows_at(self, step: int, num_steps: int) -> tuple[int, int, int]:
        """Return (window length, number of rows, rows of that length read before this step)."""
        first_long = round(num_steps * (1 - self.long_share))
        is_long = step >= first_long
        length = self.long_length if is_long else self.length
        num_rows = self.tokens_per_step // length
        return length, num_rows, (step - first_long if is_long else step) * num_rows

    def batch(self, stream: Tensor, seed: int, step: int, num_steps: int) -> Tensor:
        """Return the windows of a step, one more token than positions predicted, ``[rows, length + 1]`` int64.

        Rows of one length run through the stream in epochs: each epoch cuts it at a random offset into windows that
        do not overlap, and reads them in random order.
        """
        length, num_rows, first = self.rows_at(step, num_steps)
        rows = []
        for row in range(first, first + num_rows):
            start = _window_start(len(stream), length, row, seed)
            generator = np.random.default_rng((seed, length, row, 1))
            rows.append(_with_repeats(stream[start : start + length + 1], self.repeat_share, generator))
        return torch.stack(rows)


def _window_start(num_tokens: int, length: int, row: int, seed: int) -> int:
    """Return where the ``row``-th window of this length starts."""
    per_epoch = (num_tokens - 1) // length - 1
    if per_epoch < 1:
        raise ValueError(f"a stream of {num_tokens} tokens is too short for windows of {length}; shorten the windows")
    epoch, index = divmod(row, per_epoch)
    generator = np.random.default_rng((seed, length, epoch))
    offset = int(generator.integers(length))
    return offset + length * int(generator.permutation(per_epoch)[index])


def _with_repeats(window: Tensor, share: float, generator: np.random.Generator) -> Tensor:
    """Return the window with some parts said twice, cut to its length."""
    length = len(window)
    for piece in range(0, length - MAX_REPEAT, REPEAT_EVERY):
        num_copies = int(share) + int(generator.random() < share % 1)
        if num_copies:
            start = piece + int(generator.integers(MAX_REPEAT))
            end = min(length, start + int(generator.integers(MIN_REPEAT, MAX_REPEAT + 1)))
            old, new = window[generator.integers(start, end)], window[generator.integers(length)]
            copied = window[start:end].where(window[start:end] != old, new)
            window = torch.cat([window[:end], *[copied] * num_copies, window[end:]])[:length]
    return window
