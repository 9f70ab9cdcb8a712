"""Probability laws over a vocabulary: tables, point masses, and the one way to combine them.

A law is either a row of a table ``[R, V]`` or a point mass on one id. Greedy decoding has point masses only, so its
verification compares ids and never builds anything as wide as the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.laws.rows import scatter_rows
from specdec.transfers import on_device, on_host


@dataclass(frozen=True)
class Laws:
    """Hold one law per entry of a batch, each a table row or a point mass.

    Args:
        table: ``[R, V]`` float32 or float64, rows non-negative and summing to 1. ``R`` may be 0.
        index: ``S`` int64 (any leading shape), the row of ``table``, or -1 for a point mass.
        point: ``S`` int64, the id that carries all the mass if ``index`` is -1; else ignored.

    Guarantee: several entries may share one row (siblings drawn from one law cost one row).
    Laws of one shape may share ``index`` and ``point``, whoever made them: to have other ones, make new tensors, as
        ``with_points`` does, and never write to these.
    """

    table: Tensor
    index: Tensor
    point: Tensor

    @staticmethod
    def points(ids: Tensor) -> "Laws":
        """Return point masses on ids ``[...]`` int64 of any shape, which are kept."""
        table = torch.empty(0, 0, dtype=torch.float32, device=ids.device)
        return Laws(table, torch.full_like(ids, -1), ids)

    @staticmethod
    def from_probs(probs: Tensor) -> "Laws":
        """Return the laws of a dense tensor ``S + [V]`` of probabilities (float32 or float64, kept)."""
        return Laws(probs.reshape(-1, probs.shape[-1]), *_numbers(probs.shape[:-1], probs.device))

    @staticmethod
    def stack(laws: Sequence["Laws"], dim: int) -> "Laws":
        """Stack laws of equal shape along a new dimension ``dim``; cost and tables as in ``concat``."""
        return Laws.concat([Laws(law.table, law.index.unsqueeze(dim), law.point.unsqueeze(dim)) for law in laws], dim)

    @staticmethod
    def concat(laws: Sequence["Laws"], dim: int) -> "Laws":
        """Put laws side by side along dimension ``dim``; tables are concatenated, not expanded.

        Tables of float32 beside float64 become float64, which keeps their values.

        Cost: a copy of all tables, if two or more have rows.
        """
        tables = [law.table for law in laws if not law.all_points]
        index, total = [], 0
        for law in laws:
            index.append(torch.where(law.index < 0, law.index, law.index + total))
            total += law.table.shape[0]
        table = torch.cat(tables) if tables else laws[0].table
        return Laws(table, torch.cat(index, dim), torch.cat([law.point for law in laws], dim))

    @property
    def shape(self) -> torch.Size:
        """Shape of the batch of laws (without the vocabulary)."""
        return self.index.shape

    @property
    def all_points(self) -> bool:
        """Whether every law is a point mass; known without reading any tensor."""
        return self.table.shape[0] == 0

    def __getitem__(self, key: object) -> "Laws":
        """Index the batch dimensions (the table is shared, nothing is copied)."""
        return Laws(self.table, self.index[key], self.point[key])  # type: ignore[index]

    def gather(self, nodes: Tensor) -> "Laws":
        """Return the laws of some nodes of each row, ``[B, K]`` out of ``[B, M]``; one of each: ``[B]``.

        Args:
            nodes: ``[B, K]`` or ``[B]``.
        """
        at = nodes.view(len(nodes), -1)
        point = self.point.gather(1, at).view(nodes.shape)
        if self.all_points:
            return Laws.points(point)
        return Laws(self.table, self.index.gather(1, at).view(nodes.shape), point)

    def to(self, device: torch.device) -> "Laws":
        """Return the laws on a device."""
        if self.index.device == device:
            return self
        return Laws(*(on_device(part, device) for part in (self.table, self.index, self.point)))

    def scatter_rows(self, places: NDArray[np.int64], batch: int) -> "Laws":
        """Return these laws at ``places`` ``[R]`` of ``batch`` rows, and point masses on id 0 elsewhere.

        Args:
            places: indices into those rows, distinct and ascending, one for each entry of the first dimension.
            batch: how many rows there are.

        Cost: O(size) of ``index``; the table is shared.
        """
        return Laws(self.table, scatter_rows(self.index, places, batch, -1), scatter_rows(self.point, places, batch))

    def with_points(self, mask: Tensor) -> "Laws":
        """Return the laws with a point mass on id 0 at the entries of ``mask``, ``[...]`` bool of their shape."""
        return Laws(self.table, self.index.masked_fill(mask, -1), self.point.masked_fill(mask, 0))

    def probs_of(self, ids: Tensor) -> Tensor:
        """Return the probability of an id under each law, ``[...]`` float64.

        Args:
            ids: ``[...]`` int64, of the shape of the laws.

        Cost: one gather, independent of V.
        """
        if self.has_no_points:
            return self.table[self.index, ids].double()
        at_point = (ids == self.point).double()
        if self.all_points:
            return at_point
        in_table = self.table[self.index.clamp(min=0), ids].double()
        return torch.where(self.index < 0, at_point, in_table)

    def dense(self, vocab_size: int | None = None) -> Tensor:
        """Return the probabilities ``S + [V]``, a copy. ``vocab_size`` is needed if every law is a point mass.

        Cost: time and memory O(|S| V).
        """
        if self.has_no_points:
            return self.table.index_select(0, self.index.reshape(-1)).view(*self.shape, -1)
        is_point, ids = (self.index < 0).unsqueeze(-1), self.point.clamp(min=0).unsqueeze(-1)
        if self.all_points:
            size = self.table.shape[1] if vocab_size is None else vocab_size
            return torch.zeros(*self.shape, size, dtype=torch.float64, device=ids.device).scatter_(-1, ids, 1.0)
        rows = torch.where(is_point, 0.0, self.table[self.index.clamp(min=0)])
        return rows.scatter_add_(-1, ids, is_point.to(rows.dtype))

    def dense_view(self, vocab_size: int | None = None) -> Tensor:
        """Return what ``dense`` does, ``S + [V]``, to be read only: on the host the table itself, if that is all of it.

        Cost: that of ``dense``; nothing for the laws of a dense tensor on the host.
        """
        if self.has_no_points:
            index = on_host(self.index).reshape(-1)
            if (index == np.arange(index[0], index[0] + len(index))).all():
                return self.table[int(index[0]) : int(index[0]) + len(index)].view(*self.shape, -1)
        return self.dense(vocab_size)

    @property
    def has_no_points(self) -> bool:
        """Whether every law is known to be a row of the table, which only the host can tell without waiting."""
        if self.all_points or self.index.device.type != "cpu":
            return False
        index = on_host(self.index)
        return index.size > 0 and bool(index.min() >= 0)


@lru_cache(maxsize=256)
def _numbers(shape: torch.Size, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ``shape``: the numbers from 0 on, and zeros. Many laws share them, and nobody writes to them."""
    with torch.inference_mode(False):
        index = torch.arange(shape.numel(), device=device).view(shape)
        return index, torch.zeros_like(index)


def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ids of the largest logits ``[..., V]`` and these logits: the lowest of equals, the first NaN.

    Cost: O(V) a row; on the host numpy looks through it in a fifth of torch's time.
    """
    if logits.device.type != "cpu":
        ids = logits.argmax(-1)
        return ids, logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    at_least_float32 = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    rows = on_host(at_least_float32).reshape(-1, logits.shape[-1])
    best = rows.argmax(-1)
    shape = logits.shape[:-1]
    return torch.from_numpy(best).view(shape), torch.from_numpy(rows[np.arange(len(best)), best]).view(shape)


def as_laws(laws: Laws | Tensor) -> Laws:
    """Return laws as they are, or the laws of a dense tensor of probabilities ``S + [V]``."""
    return Laws.from_probs(laws) if isinstance(laws, Tensor) else laws


def where(condition: Tensor, first: Laws, second: Laws) -> Laws:
    """Return ``first`` in the rows in which ``condition`` ``[B]`` holds, else ``second``, for laws of shape ``[B]``.

    Cost: O(B V), whatever the size of the tables; nothing V-wide if all laws are point masses.
    """
    index = torch.where(condition, first.index, second.index)
    point = torch.where(condition, first.point, second.point)
    rows = [law.table[law.index.clamp(min=0)] for law in (first, second) if not law.all_points]
    if not rows:
        return Laws(first.table, index, point)
    table = rows[0] if len(rows) == 1 else torch.where(condition.unsqueeze(-1), rows[0], rows[1])
    return Laws(table, torch.where(index < 0, index, torch.arange(len(index), device=index.device)), point)
