"""Check that bits do not depend on the bucket, with the very shapes that passes will have."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from oracles.graphed.buckets import ROWS, WIDTHS
from oracles.graphed.calls import Calls
from oracles.graphed.chunks import CHUNK
from oracles.graphed.graphed_memory import Memory, round_capacity
from oracles.graphed.graphed_passes import PassPart
from oracles.graphed.upload import Call
from oracles.transformer.bits import comb
from oracles.transformer.config import TransformerConfig
from specdec.contracts import IntArray
from specdec.transfers import HOST

# Tokens before the checked paths, one number for each seed: a path crosses the boundary of a chunk, one begins at 0.
PREFIXES = (CHUNK - 3, 61, 0)
_NUM_ROWS = ROWS[-1] + 1
# Rows of caches whose batches are all rows, each at its own place: no bucket of rows has such a size.
FULL = (3, 5)


def differing_bucket(calls: Calls, config: TransformerConfig, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return the first bucket in which a node's bits differ from those in a chain of one row; None: there is none.

    The first layer scores three paths, with keys of their own before them, in every bucket of chains and of trees, and
    in batches that are all rows of a small cache; the other nodes are random. All layers have products and attention of
    the same shapes.

    Args:
        calls: without graphs.
        config: the model's shape.
        dtype, device: of the cache.

    Cost: a layer's pass of each bucket whose operations have shapes of their own, up to 90,000 nodes in all; a cache
        of one layer.
    """
    large = _Check(calls, config, dtype, device, _NUM_ROWS)
    small = {rows: _Check(calls, config, dtype, device, rows) for rows in FULL}
    for rows, width, is_tree in product((*ROWS, *FULL), WIDTHS, (False, True)):
        fits = rows * width <= calls.passes.way.distinct_nodes
        if fits and not small.get(rows, large).keeps(rows, width, is_tree):
            whole = ", all those of a cache" if rows in small else ""
            return f"{'a tree' if is_tree else 'a chain'} of {width} nodes in each of {rows} rows{whole}"
    return None


class _Check:
    """Paths in the first rows of a cache, what lies before them, and their streams in a chain of one row."""

    def __init__(
        self, calls: Calls, config: TransformerConfig, dtype: torch.dtype, device: torch.device, num_rows: int
    ) -> None:
        self._calls, self._vocab, self._device = calls, config.vocab_size, device
        self._generator, self._chance = torch.Generator().manual_seed(0), np.random.default_rng(0)
        capacity = round_capacity(CHUNK + WIDTHS[-1])
        self._memory = Memory(replace(config, num_layers=1), num_rows, capacity, dtype, device)
        for row in range(num_rows):
            slots = self._memory.slots[:, :, row]
            slots.copy_(torch.randn(slots.shape, generator=self._generator, device=HOST))
        self._starts = self._chance.integers(0, CHUNK, num_rows)
        self._starts[: len(PREFIXES)] = PREFIXES
        self._paths = self._ids(len(PREFIXES), WIDTHS[-1])
        self._alone = [self._streams(path[None], None, np.array([row])) for row, path in enumerate(self._paths)]

    def _ids(self, *shape: int) -> Tensor:
        return torch.randint(self._vocab, shape, generator=self._generator, device=HOST)

    def _streams(self, tokens: Tensor, parents: Tensor | None, rows: IntArray) -> Tensor:
        """Return ``[B, N, D]`` after the first layer."""
        nodes = torch.full((len(rows),), tokens.shape[1], device=HOST)
        call = Call(tokens, parents, nodes, rows, self._starts[rows], 0, None)
        return self._calls.answer(call, self._memory, PassPart((0, 1), (0,)), "none").hidden[0]

    def keeps(self, num_rows: int, width: int, is_tree: bool) -> bool:
        """Tell whether all paths have the same bits in this bucket as alone."""
        return all(self._same(rows, width, is_tree) for rows in self._batches(num_rows))

    def _batches(self, num_rows: int) -> Iterator[IntArray]:
        """Yield rows of the cache for batches that hold each path once, at a random place."""
        together = min(num_rows, len(PREFIXES))
        for first in range(0, len(PREFIXES), together):
            chosen = np.arange(first, min(first + together, len(PREFIXES)))
            others = np.arange(len(PREFIXES), len(PREFIXES) + num_rows - len(chosen))
            yield self._chance.permutation(np.concatenate([chosen, others]))

    def _same(self, rows: IntArray, width: int, is_tree: bool) -> bool:
        tokens, parents, step = self._ids(len(rows), width), None, 2 if is_tree else 1
        path = -(-width // step)
        of_paths = [(place, row) for place, row in enumerate(rows.tolist()) if row < len(PREFIXES)]
        for place, row in of_paths:
            tokens[place, ::step] = self._paths[row, :path]
        if is_tree:
            parents = comb(path)[:, :width].expand(len(rows), -1)
        found = self._streams(tokens, parents, rows)[:, ::step]
        return all(torch.equal(found[place], self._alone[row][0, :path]) for place, row in of_paths)
