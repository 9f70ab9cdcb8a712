"""The cache of a head that drafts token by token: beside what slots hold, the feature of every position."""

import math

import numpy as np
import torch
from torch import Tensor

from specdec.cache.page_pool import PAGE, count_pages
from specdec.cache.paged_cache import PagedKVCache, TensorMemory
from specdec.cache.slot_cache import SlotCache, check_fits, move_kept
from specdec.contracts import IntArray
from specdec.transfers import on_device, together_on_device


class FeatureSlots(SlotCache):
    """Keep, beside what the slots of a cache hold, a feature per position: the one that the node in that slot reads.

    A node in slot s reads the feature of position s, and what it leaves for its children is a guess at the feature of
    position s + 1. Features that were ``put`` are known: no guess is written over them.

    Attributes:
        features: ``[num_rows, capacity + 1, feature_size]``.
        known: ``[num_rows]`` positions whose features were put: 0 .. known - 1. Compiled code may be told where it
            lies: it stays the same array.
    """

    features: Tensor
    known: IntArray

    def _make_features(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        """Give every position a feature of zeros. Cost: ``size`` numbers a slot."""
        self.features = torch.zeros(self.num_rows, self.capacity + 1, size, dtype=dtype, device=device)
        self.known = np.zeros(self.num_rows, dtype=np.int64)

    def put(self, rows: IntArray, starts: IntArray, counts: IntArray, features: Tensor) -> None:
        """Let the features of positions ``starts[b] .. starts[b] + counts[b] - 1`` be known; later ones are not.

        Args:
            rows, starts, counts: ``[B]``.
            features: ``[B, M, feature_size]``, on the cache's device; columns from ``counts[b]`` on are not read.

        Raises:
            ValueError: a row would have a gap, keys of positions that are put stand, or there is no room.
        """
        self.check_put(rows, starts, counts)
        line, column = np.nonzero(np.arange(features.shape[1]) < counts[:, None])
        places = (line, column, rows[line], starts[line] + column)
        of_line, of_column, row, position = together_on_device(*places, device=features.device)
        self.features[row, position] = features[of_line, of_column].to(self.features.dtype)
        self.known[rows] = starts + counts

    def check_put(self, rows: IntArray, starts: IntArray, counts: IntArray) -> None:
        """Raise ValueError if features of rows ``[B]`` cannot be put; arguments and errors as in ``put``."""
        slack = np.minimum(self.known[rows] - starts, starts - self.lengths[rows])
        if min(slack.tolist(), default=0) < 0:
            raise ValueError(f"features from {starts} on leave a gap, or change what keys were made of, in rows {rows}")
        if max((starts + counts).tolist(), default=0) > self.capacity + 1:
            raise ValueError(f"features {starts} + {counts} are more than the {self.capacity + 1} of a row")

    def read(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Return the features ``[B, W, feature_size]`` of positions ``[B, W]`` of rows ``[B]``."""
        return self.features[rows.unsqueeze(1), positions]

    def last(self, rows: IntArray) -> Tensor:
        """Return the features ``[R, feature_size]`` of the last known position of rows ``[R]``.

        Raises:
            ValueError: nothing is known of a row.
        """
        if not self.known[rows].all():
            raise ValueError(f"no features were put for rows {rows[self.known[rows] == 0].tolist()}")
        row, position = together_on_device(rows, self.known[rows] - 1, device=self.features.device)
        return self.features[row, position]

    def guess(self, rows: IntArray, at: Tensor, positions: Tensor, features: Tensor) -> None:
        """Keep features ``[B, W, feature_size]`` of positions ``[B, W]`` that are not known.

        Args:
            rows: ``[B]``.
            at: the same, on the cache's device.
            positions, features: there too.
        """
        is_known = positions < on_device(self.known[rows], positions.device).unsqueeze(1)
        where = at.unsqueeze(1), positions
        self.features[where] = torch.where(is_known.unsqueeze(-1), self.features[where], features)

    def reset(self, rows: IntArray) -> None:
        """Empty ``rows`` ``[B]``, features too, for new occupants. Cost: clears what was written to them."""
        used = max(int(self.known[rows].max()), int(self._written[rows].max())) + 1
        super().reset(rows)
        self.features[:, :used].index_fill_(0, on_device(rows, self.features.device), 0)
        self.known[rows] = 0

    def commit(self, rows: IntArray, path: Tensor | None, num_kept: IntArray) -> None:
        """Keep nodes, as in ``SlotCache.commit``, and what they left for their children."""
        which = np.stack([rows, self._lengths[rows], num_kept])
        super().commit(rows, path, num_kept)
        if path is not None:
            kept = path[:, : int(num_kept.max(initial=0))]
            move_kept(self.features[:, 1:], 0, 1, which, kept)  # a slot's own guess is of the position after it


class FeatureCache(FeatureSlots, PagedKVCache):
    """Hold keys and values in pages of one tensor, and features.

    Args:
        leading, trailing, num_rows, capacity, dtype, device, max_bytes: see ``PagedKVCache.alone``.
        feature_size: width of a feature.

    Raises:
        ValueError: payload and features would exceed ``max_bytes``.

    Cost: ``feature_size`` numbers a slot beside the payload.
    """

    def __init__(
        self,
        leading: tuple[int, ...],
        trailing: tuple[int, ...],
        num_rows: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        feature_size: int,
        max_bytes: int | None = None,
    ) -> None:
        slots, slot = count_pages(capacity) * PAGE, math.prod(leading) * math.prod(trailing)
        size = num_rows * slots * slot + num_rows * (capacity + 1) * feature_size
        check_fits(size * dtype.itemsize, num_rows, capacity, max_bytes, device)
        super().__init__(
            TensorMemory(leading, trailing, slots // PAGE * num_rows, dtype, device, 0), num_rows, capacity
        )
        self._make_features(feature_size, dtype, device)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The payload, see ``PagedKVCache.payload``, and the features ``[num_rows, capacity + 1, feature_size]``."""
        return self.payload, self.features
