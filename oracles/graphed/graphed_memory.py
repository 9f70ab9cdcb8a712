"""The cache of graphed passes, and its memory, which outlives a run so that graphs on it can be reused."""

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from oracles.transformer.attention import BLOCK
from oracles.transformer.config import TransformerConfig
from specdec.cache import KVCache, check_fits, move_kept
from specdec.contracts import IntArray
from specdec.transfers import StagedValues, stage

CACHE_ROW_DIM, CACHE_SLOT_DIM = 2, 4


def round_capacity(capacity: int) -> int:
    """Return the slots of a row for a capacity: whole blocks, in steps of at most an eighth above 512.

    So runs of about the same length have caches of the same shape.
    """
    step = max(BLOCK, 1 << max(capacity.bit_length() - 4, 0))
    return -(-capacity // step) * step


class Memory:
    """Keys and values of all layers: a line for every row, head and slot, and one more, the scratch line.

    What a pass computes for padding goes to the scratch line. Nothing reads it, so not even NaN gets out of it.
    Features of heads have lines of the same kind: one for every row and position.

    Args:
        config: the model's shape.
        num_rows, capacity: rows, and slots of each.
        dtype, device: of the numbers.
        feature_size: width of a feature; 0: there are none.

    Attributes:
        num_rows, capacity: as given.
        slots: ``[layers, 2, rows, K, slots, D]``, without the scratch line.
        lines: keys and values by layers, ``[rows * K * slots + 1, D]``, as they are written.
        scratch: the number of the last line.
        features: ``[rows, slots + 1, feature_size]``, see ``specdec.cache.FeatureSlots``.
    """

    def __init__(
        self,
        config: TransformerConfig,
        num_rows: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        feature_size: int = 0,
    ) -> None:
        self.num_rows, self.capacity = num_rows, capacity
        shape = (num_rows, config.kv_heads, capacity)
        self.scratch = num_rows * config.kv_heads * capacity
        whole = torch.zeros(config.num_layers, 2, self.scratch + 1, config.head_size, dtype=dtype, device=device)
        self.slots = whole[:, :, : self.scratch].view(*whole.shape[:2], *shape, config.head_size)
        self.lines = list(zip(whole[:, 0].unbind(0), whole[:, 1].unbind(0), strict=True))
        places = num_rows * (capacity + 1)
        self._feature_lines = torch.zeros(places + 1, feature_size, dtype=dtype, device=device)
        self.features = self._feature_lines[:places].view(num_rows, capacity + 1, feature_size)
        # Moves of commits, as in ``move_kept``, and their numbers on the way to the device.
        self._due: list[tuple[IntArray, Tensor, StagedValues]] = []

    def read_features(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Return the features ``[R * W, F]`` of positions ``[R, W]`` of rows ``[R]``; for padding any of its row's."""
        return self._feature_lines.index_select(0, self._places(rows, positions.clamp(max=self.capacity)).flatten())

    def write_features(self, rows: Tensor, positions: Tensor, is_written: Tensor, features: Tensor) -> None:
        """Keep the features ``[R * W, F]`` of positions ``[R, W]`` of rows ``[R]`` for which ``is_written`` is true.

        The others go to the scratch line.
        """
        places = self._places(rows, positions).masked_fill(~is_written, len(self._feature_lines) - 1)
        self._feature_lines.index_put_((places.flatten(),), features)

    def _places(self, rows: Tensor, positions: Tensor) -> Tensor:
        return rows.unsqueeze(1) * (self.capacity + 1) + positions

    def later(self, which: IntArray, path: Tensor) -> None:
        """Move keys and values before the next pass; the numbers of the move come with those of that pass.

        Args:
            which: ``[3, B]``, see ``move_kept``.
            path: ``[B, W]`` nodes; it is copied.
        """
        path = path.clone()  # it is the caller's
        self._due.append((which, path, stage((which, path), self.slots.device)))

    def settle(self) -> None:
        """Make the moves that are due."""
        while self._due:
            which, path, _ = self._due[0]
            move_kept(self.slots, CACHE_ROW_DIM, CACHE_SLOT_DIM, which, path)
            # Not earlier: a move that failed is still due.
            del self._due[0]

    def clear(self) -> None:
        """Reset to the state of a new memory."""
        self._due = []
        self.slots.zero_()
        self.features.zero_()


class GraphedCache(KVCache):
    """A cache of graphed passes. A commit's moves are uploaded with the next pass's numbers, and made before that pass.

    Args:
        memory: that holds its contents.

    Attributes:
        memory: as given.
    """

    def __init__(self, memory: Memory) -> None:
        slots = memory.slots
        super().__init__(slots.shape, CACHE_ROW_DIM, CACHE_SLOT_DIM, slots.dtype, slots.device, payload=slots)
        self.memory = memory

    @property
    def payload(self) -> Tensor:
        """The memory ``[layers, 2, rows, K, slots, D]``, once everything is in its place."""
        self.memory.settle()
        return self._payload

    def _move(self, which: IntArray, path: Tensor) -> None:
        self.memory.later(which, path)

    def _clear(self, rows: IntArray, used: int) -> None:
        self.memory.settle()
        super()._clear(rows, used)


AnyCache = TypeVar("AnyCache", bound=GraphedCache)


class Shelf(Generic[AnyCache]):
    """Make caches, and keep the memory of the last unused one for the next of its shape.

    A graph holds addresses. If every run had new memory, every run would need new graphs.

    Args:
        kind: makes a cache of a memory.
        config: the model's shape.
        dtype, device: of keys and values.
        feature_size: see ``Memory``.

    Attributes:
        device: as given.

    Cost: between runs the memory of one cache.
    """

    def __init__(
        self,
        kind: Callable[[Memory], AnyCache],
        config: TransformerConfig,
        dtype: torch.dtype,
        device: torch.device,
        feature_size: int = 0,
    ) -> None:
        self._kind, self._config, self._dtype, self.device = kind, config, dtype, device
        self._feature_size = feature_size
        self._free: Memory | None = None

    def cache(self, num_rows: int, capacity: int, max_bytes: int | None) -> AnyCache:
        """Return an empty cache of ``num_rows`` rows of at least ``capacity`` slots.

        Raises:
            ValueError: it would exceed ``max_bytes`` (None: half of the free memory).
        """
        memory = self._memory(num_rows, round_capacity(capacity), max_bytes)
        cache = self._kind(memory)
        weakref.finalize(cache, self._take_back, memory).atexit = False
        return cache

    def _memory(self, num_rows: int, capacity: int, max_bytes: int | None) -> Memory:
        free, self._free = self._free, None
        config, device = self._config, self.device
        if free is not None and (free.num_rows, free.capacity) == (num_rows, capacity):
            if max_bytes is not None:
                check_fits(free.slots.nbytes + free.features.nbytes, num_rows, capacity, max_bytes, device)
            free.clear()
            return free
        # Unused memory is freed before more is allocated.
        del free
        slots = 2 * config.num_layers * config.kv_heads * config.head_size * num_rows * capacity
        numbers = slots + num_rows * (capacity + 1) * self._feature_size
        check_fits(numbers * self._dtype.itemsize, num_rows, capacity, max_bytes, device)
        # A later run may write to it outside of this one's inference mode.
        with torch.inference_mode(False):
            return Memory(config, num_rows, capacity, self._dtype, device, self._feature_size)

    def _take_back(self, memory: Memory) -> None:
        self._free = memory
