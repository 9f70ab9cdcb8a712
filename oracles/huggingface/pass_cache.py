"""A cache as a ``transformers`` model sees it during one pass."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

# The answer to models that ask for one length of all rows: no row has it, so a model that relies on it fails the check.
_NO_ROWS_LENGTH = 2**20


@cache
def library_cache(kind: type) -> Any:
    """Return a class of this file as a subclass of the library's ``Cache``, which some models require.

    Raises:
        ImportError: ``transformers`` is missing.
    """
    from transformers.cache_utils import Cache

    return type(kind.__name__, (kind, Cache), {"layer_class_to_replicate": None, "offloading": False})


class ShapeRecorder:
    """Note the shapes of what a model caches, and return it unchanged.

    Attributes:
        shapes: of keys and of values ``[B, heads, N, size]``, by layer.
        dtype: of the keys.
    """

    def __init__(self) -> None:
        self.layers: list[Any] = []  # the library's own, of which there are none
        self.shapes: dict[int, tuple[torch.Size, torch.Size]] = {}
        self.dtype: torch.dtype | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Note the shapes of a layer's keys and values ``[B, heads, N, size]``, and return both unchanged."""
        self.shapes[layer_idx], self.dtype = (key_states.shape, value_states.shape), key_states.dtype
        return key_states, value_states


class PassCache:
    """Write the keys and values of one pass to their slots, and show the rows up to the longest one's end.

    Args:
        payload: ``[layers, 2, rows, heads, slots, size]``.
        rows: ``[B]`` int64 on the payload's device.
        span: the first row and the one after the last, if the rows are contiguous and in order; else None.
        slots: ``[B, N]`` of the nodes' keys.
        end: number of slots that are shown.

    Cost: nothing is copied if ``span`` is given; else what is shown is copied, layer by layer.
    """

    def __init__(self, payload: Tensor, rows: Tensor, span: tuple[int, int] | None, slots: Tensor, end: int) -> None:
        self.layers: list[Any] = []  # the library's own, of which there are none
        self._payload, self._rows, self._span, self._slots, self._end = payload, rows, span, slots, end

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values ``[B, heads, T, size]``, after writing those of the pass, ``[B, heads, N, size]``."""
        keys, values = self._payload[layer_idx]
        return self._put(keys, key_states), self._put(values, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return a length that no row has."""
        return _NO_ROWS_LENGTH

    def _put(self, kept: Tensor, new: Tensor) -> Tensor:
        heads, size = new.shape[1], new.shape[3]
        # [rows, heads, slots, size] at [B, 1] and [B, N] is [B, N, heads, size]
        kept[self._rows.unsqueeze(1), :heads, self._slots, :size] = new.transpose(1, 2)
        shown = kept[:, :heads, : self._end, :size]
        return shown[self._rows] if self._span is None else shown[slice(*self._span)]
