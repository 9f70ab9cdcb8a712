"""A layer's widest product and its attention, in every way: their time, and whether bits depend on the pass."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.harness.rounds import median_seconds
from experiments.studies.device.device_models import SHAPES, Options, waiting
from oracles.graphed.buckets import MAX_NODES, WIDTHS, bucket_of
from oracles.graphed.graphed_memory import Memory, round_capacity
from oracles.graphed.graphed_nodes import Nodes
from oracles.graphed.graphs import CudaCapture, Outputs
from oracles.graphed.tiles import TILE
from oracles.graphed.triton_attention import why_not
from oracles.graphed.upload import Call, Upload
from oracles.graphed.ways import ATTENTIONS
from oracles.transformer.bits import SEEDS
from oracles.transformer.config import TransformerConfig

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
# Sizes of the kernel's tiles: rows, columns, and what is summed at once.
_TILES = {"ROWS": 16, "COLUMNS": 64, "BLOCK": 64}

Product = Callable[[Tensor, Tensor], Tensor]


def products(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each shape and number of rows, with figures of a layer's widest product in several ways.

    Bits are kept if each of the first rows is, alone, what it is among all.
    """
    for name, count in product(options.shapes, ROWS):
        config, dtype = SHAPES[name], getattr(torch, options.dtype)
        weight = torch.randn(config.intermediate_size, config.hidden_size, device=options.place).to(dtype)
        row: dict[str, Any] = {"shape": name, "rows": count}
        for kind, compute in ways(options.place, dtype).items():
            x = torch.zeros(count, config.hidden_size, dtype=dtype, device=options.place)
            row[f"bits kept, {kind}"] = all(_keeps_bits(compute, x, weight, seed) for seed in SEEDS)
            product_of_x = waiting(partial(compute, x, weight), options.place)
            row[f"us, {kind}"] = 1e6 * median_seconds(product_of_x, options.repeats)
        yield row


def ways(device: torch.device, dtype: torch.dtype) -> dict[str, Product]:
    """Return the ways to compute a product, by name: the library's, in tiles of rows, and Triton's if it runs here."""
    found: dict[str, Product] = {"plain": torch.nn.functional.linear}
    found |= {f"by {size}": partial(_by, size) for size in (TILE, ROWS[-1])}
    return found if why_not(device, dtype, 16) else found | {"triton": by_triton}


def _by(size: int, x: Tensor, weight: Tensor) -> Tensor:
    """Return the product, computed ``size`` rows at a time."""
    padded = torch.nn.functional.pad(x, (0, 0, 0, -len(x) % size))
    return torch.cat([torch.nn.functional.linear(tile, weight) for tile in torch.split(padded, size)])[: len(x)]


def by_triton(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``x @ weight.T`` by a kernel of fixed tiles, which never shares a sum among processors."""
    from experiments.studies.device.product_kernel import product_kernel

    (rows, inner), outer = x.shape, len(weight)
    out = x.new_empty(rows, outer)
    grid = (-(-outer // _TILES["COLUMNS"]), -(-rows // _TILES["ROWS"]))
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        product_kernel[grid](x, weight, out, rows, INNER=inner, OUTER=outer, **_TILES, enable_fp_fusion=True)
    return out


def _keeps_bits(compute: Product, x: Tensor, weight: Tensor, seed: int) -> bool:
    """Tell whether the first of some random rows have the bits that each has alone."""
    x.normal_(generator=torch.Generator(x.device).manual_seed(seed))
    together = compute(x, weight)
    return all(torch.equal(compute(x[row : row + 1], weight)[0], together[row]) for row in range(min(len(x), 4)))


def attentions(options: Options) -> Iterator[dict[str, Any]]:
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

    def __init__(self, config: TransformerConfig, options: Options, batch: int, context: int) -> None:
        self._config, self._options, self._batch, self._context = replace(config, num_layers=1), options, batch, context
        self._dtype = getattr(torch, options.dtype)
        capacity = round_capacity(context + max(options.widths))
        self._memory = Memory(self._config, batch, capacity, self._dtype, options.place)
        self._generator = torch.Generator(options.place).manual_seed(0)
        self._memory.slots.uniform_(-1.0, 1.0, generator=self._generator)

    def _nodes(self, rows: int, width: int, is_tree: bool, depth: int = 0) -> Nodes:
        """Return the nodes of chains, or of trees in which all but the first hang on the first; so deep is the first.

        Every call gets a place of its own on the device.
        """
        parents = torch.zeros(rows, width, dtype=torch.int64) if is_tree else None
        if parents is not None:
            parents[:, 0] = -1
        numbers = torch.full((rows,), width), np.arange(rows), np.full(rows, self._context + depth)
        call = Call(torch.zeros(rows, width, dtype=torch.int64), parents, *numbers, 0, None)
        bucket = bucket_of(slice(0, rows), slice(0, width), width if is_tree else 0, self._batch)
        return Nodes(self._config, bucket, Upload(self._options.place)(call, bucket), self._memory)

    def figures(self, width: int, is_tree: bool) -> dict[str, Any]:
        """Return the figures of every way: time, keys and values a second, whether bits are kept."""
        wide = self._nodes(self._batch, width, is_tree)
        alone = [self._nodes(1, 1, False, depth) for depth in range(min(width, 2) if is_tree else width)]
        given = self._random_inputs(wide.bucket.nodes)
        read = 2 * self._batch * (self._context + width) * self._config.kv_heads * self._config.head_size
        found: dict[str, Any] = {}
        for name, attention in ATTENTIONS.items():
            if name == "triton" and why_not(self._options.place, self._dtype, self._config.head_size):
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
        """Return what computes the same as a graph, on devices that have graphs, as passes do."""
        if self._options.place.type != "cuda":
            return attend

        def compute() -> Outputs:
            return (attend(),)

        compute()
        return CudaCapture(self._options.place)(compute).replay
