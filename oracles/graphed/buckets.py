"""The shapes of passes, and how a call of any size is cut into such passes. This file has no tensors."""

from collections.abc import Iterator
from dataclasses import dataclass

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WIDTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Nodes of one pass, padding included. This is far more than makes a pass compute-bound, so larger passes would only
# take more memory, for masks and activations.
MAX_NODES = 2048


@dataclass(frozen=True)
class Bucket:
    """The shape of a pass.

    Attributes:
        rows: of the batch, padding included.
        width: nodes that attend in each row, padding included.
        total: nodes of a tree, including those whose keys are cached; 0: rows are chains.
        whole: the batch is all rows of the cache, each at its own place; else rows of the cache are gathered.
    """

    rows: int
    width: int
    total: int
    whole: bool

    @property
    def nodes(self) -> int:
        """Nodes that attend, padding included."""
        return self.rows * self.width

    @property
    def returns(self) -> bool:
        """Whether the shape is one of few, so that it recurs and is worth a graph."""
        return self.total <= WIDTHS[-1]


@dataclass(frozen=True)
class PassSlice:
    """A part of a call that is one pass: some of its rows, some of their nodes, and the pass's shape."""

    bucket: Bucket
    rows: slice
    nodes: slice


def cuts(num_rows: int, size: int, first: int, is_tree: bool, cache_rows: int) -> Iterator[list[PassSlice]]:
    """Yield the passes of a call, one list for each group of rows; a list covers their nodes in order.

    Nodes of a later pass see those of an earlier one, because parents come before their children.

    Args:
        num_rows: of the call.
        size: its nodes in each row, M.
        first: number of them, the first ones, that are cached and do not attend.
        is_tree: whether it has parents.
        cache_rows: rows of the cache.
    """
    group = _rows_at_once(min(size - first, WIDTHS[-1]))
    for row in range(0, num_rows, group):
        rows = slice(row, min(row + group, num_rows))
        parts = (slice(node, min(node + WIDTHS[-1], size)) for node in range(first, size, WIDTHS[-1]))
        yield [PassSlice(bucket_of(rows, nodes, size if is_tree else 0, cache_rows), rows, nodes) for nodes in parts]


def bucket_of(rows: slice, nodes: slice, total: int, cache_rows: int) -> Bucket:
    """Return the smallest bucket for some rows of a call, some of their nodes, and ``total`` tree nodes (0: chains)."""
    width = _at_least(WIDTHS, nodes.stop - nodes.start)
    padded = _at_least(ROWS, rows.stop - rows.start)
    whole = padded >= cache_rows and cache_rows <= _rows_at_once(width)
    return Bucket(cache_rows if whole else padded, width, _at_least(WIDTHS, total) if total else 0, whole)


def _rows_at_once(width: int) -> int:
    """Return how many rows a pass with ``width`` nodes in each row takes."""
    fitting = MAX_NODES // _at_least(WIDTHS, width)
    return max(rows for rows in ROWS if rows <= fitting)


def _at_least(sizes: tuple[int, ...], count: int) -> int:
    """Return the first size that holds ``count``, or a multiple of the last one if none does."""
    if count > sizes[-1]:
        return -(-count // sizes[-1]) * sizes[-1]
    return next(size for size in sizes if size >= count)
