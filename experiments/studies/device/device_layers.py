"""A layer's attention, in every way: its time, and whether bits depend on the pass."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.harness.rounds import median_seconds, waiting
from experiments.studies.device.device_models import SHAPES, DeviceOptions
from oracles.graphed.buckets import MAX_NODES, WIDTHS, bucket_of
from oracles.graphed.graphed_memory import Memory, round_capacity
from oracles.graphed.graphed_nodes import PassNodes
from oracles.graphed.graphs import CudaCapture, Outputs
from oracles.graphed.triton_attention import missing_requirement
from oracles.graphed.upload import Call, Upload
from oracles.graphed.ways import ATTENTIONS
from oracles.transformer.config import TransformerConfig


def attentions(options: DeviceOptions) -> Iterator[dict[str, Any]]:
    """Yield a row for each shape, batch, context and width, of chains and of trees; passes of more nodes are several.

    Bits are kept if each node of the first row has the same bits in a pass of its own, one node of one row after its
    path.
    """
    for name, batch, context in product(options.shapes, options.batch_sizes, options.contexts):
        layer = _Layer(SHAPES[name], options, batch, context)
        for width, is_tree in product(options.widths, (False, True)):
            if batch * width <= MAX_NODES and width <= WIDTHS[-1]:
                row = {"shape": name, "batch": batch, "context": context, "width": width, "tree": is_tree}
                yield row | layer.figures(width, is_tree)


class _Layer:
    """The keys and values of one layer, and what is asked of them.

    Args:
        config: of the model.
        options: say where, in what dtype, and how often.
        batch, context: rows, and tokens that each holds.
    """

    def __init__(self, config: TransformerConfig, options: DeviceOptions, batch: int, context: int) -> None:
        self._config, self._options, self._batch, self._context = replace(config, num_layers=1), options, batch, context
        self._dtype = getattr(torch, options.dtype)
        capacity = round_capacity(context + max(options.widths))
        self._memory = Memory(self._config, batch, capacity, self._dtype, options.place)
        self._generator = torch.Generator(options.place).manual_seed(0)
        self._memory.slots.uniform_(-1.0, 1.0, generator=self._generator)

    def _nodes(self, rows: int, width: int, is_tree: bool, depth: int = 0) -> PassNodes:
        """Return the nodes of chains, or of trees in which all but the first hang on the first; so deep is the first.

        Every call gets a place of its own on the device.
        """
        parents = torch.zeros(rows, width, dtype=torch.int64) if is_tree else None
        if parents is not None:
            parents[:, 0] = -1
        numbers = torch.full((rows,), width), np.arange(rows), np.full(rows, self._context + depth)
        call = Call(torch.zeros(rows, width, dtype=torch.int64), parents, *numbers, 0, None)
        bucket = bucket_of(slice(0, rows), slice(0, width), width if is_tree else 0, self._batch)
        return PassNodes(self._config, Upload(self._options.place)(call, bucket), self._memory)

    def figures(self, width: int, is_tree: bool) -> dict[str, Any]:
        """Return the figures of every way: time, keys and values a second, whether bits are kept."""
        wide = self._nodes(self._batch, width, is_tree)
        alone = [self._nodes(1, 1, False, depth) for depth in range(min(width, 2) if is_tree else width)]
        given = self._random_inputs(wide.bucket.nodes)
        read = 2 * self._batch * (self._context + width) * self._config.kv_heads * self._config.head_size
        found: dict[str, Any] = {}
        for name, attention in ATTENTIONS.items():
            if name == "triton" and missing_requirement(self._options.place, self._dtype, self._config.head_size):
                continue
            attend = partial(attention(wide), 0, *given)
            seconds = median_seconds(waiting(self._as_graph(attend), self._options.place), self._options.repeats)
            found[f"us, {name}"] = 1e6 * seconds
            found[f"GB/s, {name}"] = read * self._dtype.itemsize / seconds / 1e9
            # A pass of a node leaves the keys of its path to those below it.
            ways, together = [attention(nodes) for nodes in alone], attend()[:width]
            parts = ([part[node : node + 1] for part in given] for node in range(width))
            each = [ways[min(node, len(ways) - 1)](0, *part)[:1] for node, part in enumerate(parts)]
            found[f"bits kept, {name}"] = torch.equal(together, torch.cat(each))
        return found

    def _random_inputs(self, count: int) -> list[Tensor]:
        """Return queries, keys and values of ``count`` nodes."""
        shapes = [(count, heads, self._config.head_size) for heads in (self._config.num_heads, self._config.kv_heads)]
        empty = [torch.empty(shape, dtype=self._dtype, device=self._options.place) for shape in (*shapes, shapes[1])]
        return [tensor.uniform_(-1.0, 1.0, generator=self._generator) for tensor in empty]

    def _as_graph(self, attend: Callable[[], Tensor]) -> Callable[[], object]:
        """Return what computes the same as a graph, as passes do, on devices that have graphs."""
        if self._options.place.type != "cuda":
            return attend

        def compute() -> Outputs:
            return (attend(),)

        compute()
        return CudaCapture(self._options.place)(compute).replay
