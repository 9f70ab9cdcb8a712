"""Logits of the columns that a head has, as logits of all ids."""

import torch
from torch import Tensor


class Spread:
    """Put each column at the id that it is for; every other id gets minus infinity, which is probability 0.

    Args:
        target_ids: ``[columns]`` distinct ids; None: column i is for id i, and there is one for every id.
        vocab_size: V.
    """

    def __init__(self, target_ids: Tensor | None, vocab_size: int) -> None:
        self.target_ids, self.vocab_size = target_ids, vocab_size

    def __call__(self, columns: Tensor) -> Tensor:
        """Return ``[R, V]``, float32 at least, from ``[R, columns]``."""
        columns = columns.float() if columns.itemsize < torch.float32.itemsize else columns
        if self.target_ids is None:
            return columns
        every = columns.new_full((len(columns), self.vocab_size), -torch.inf)
        return every.index_copy(1, self.target_ids, columns)
