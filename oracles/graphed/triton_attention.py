"""Attention by Triton kernels: split over chunks of positions, lengths read on the device."""

import importlib.util
import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from oracles.graphed.chunks import CHUNK
from oracles.graphed.graphed_nodes import PassNodes

# Queries of a product, the fewest that tensor cores take; a row with more takes several products, never a larger one.
QUERIES = 16
# Keys of a product, by the bytes of a number: float32 needs twice the on-chip memory.
BLOCKS = {2: 64, 4: 32}
# The oldest devices that Triton compiles for.
_CAPABILITY = (8, 0)
# Numbers of sums, one vector for each chunk, that are held at once; a row's own may be more.
_MOST_HELD = 2**26


def missing_requirement(device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
    """Return why the kernels cannot run here; None: they can."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return f"its kernels run on CUDA devices, and the oracle is on {device}"
    if dtype.itemsize not in BLOCKS:
        return f"its kernels sum in float32, and the dtype is {dtype}"
    if head_size * dtype.itemsize % 16:
        return f"a head is {head_size * dtype.itemsize} bytes, no multiple of 16"
    capability = torch.cuda.get_device_capability(device)
    if capability < _CAPABILITY:
        needed, own = (".".join(map(str, one)) for one in (_CAPABILITY, capability))
        return f"its kernels need compute capability {needed}, and {device} has {own}"
    return None if importlib.util.find_spec("triton") else "the package triton is missing"


class TritonAttention:
    """Attend to the positions that rows hold, and to no other slot, in chunks that many processors share.

    Chunks begin at multiples of ``CHUNK`` positions. A node's keys, including those of its ancestors in a tree, are in
    the order of their positions. The products of a chunk have one shape, whatever the pass, and chunks are combined in
    order.

    Args:
        nodes: those of the pass.

    Guarantee: a node's result depends bitwise on nothing but its query and the keys and values on its path.

    Cost: O(T) per query with T the row's own length; the keys of a row are read once for each ``QUERIES`` queries of
        a key head, those near a tree's nodes once for each node. Memory: a float32 vector for each node, head and chunk
        of the capacity, for as many rows at once as fit in 256 MiB, at least one.
    """

    def __init__(self, nodes: PassNodes) -> None:
        self._nodes, config = nodes, nodes.config
        self._padded = max(16, 1 << (config.head_size - 1).bit_length())
        self._chunks = -(-nodes.memory.capacity // CHUNK)
        width = nodes.bucket.width
        of_row = width * config.num_heads * self._chunks * self._padded
        self._rows_at_once = min(nodes.bucket.rows, max(1, _MOST_HELD // of_row))
        shape = (self._rows_at_once * width, config.num_heads, self._chunks)
        self._sums = nodes.rows.new_empty((*shape, self._padded), dtype=torch.float32)
        self._tops, self._totals = (nodes.rows.new_empty(shape, dtype=torch.float32) for _ in range(2))
        # Chains have no paths, and read none.
        self._paths = nodes.real_positions if nodes.paths is None else nodes.paths

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``[R * W, H * D]`` from ``[R * W, H, D]`` and ``[R * W, K, D]``, and cache keys and values."""
        self._nodes.write(layer, key, value)
        asked = query.contiguous()
        found = torch.empty_like(asked)
        with torch.cuda.device_of(asked):  # type: ignore[no-untyped-call]
            for first in range(0, self._nodes.bucket.rows, self._rows_at_once):
                self._launch(layer, asked, found, first)
        return found.flatten(1)

    def _launch(self, layer: int, query: Tensor, found: Tensor, first: int) -> None:
        """Attend from the rows of the pass from ``first`` on, as many as one launch takes."""
        nodes, kernels, (keys, values) = self._nodes, _kernels(), self._nodes.memory.lines[layer]
        config, width = nodes.config, nodes.bucket.width
        rows, groups = min(self._rows_at_once, nodes.bucket.rows - first), config.num_heads // config.kv_heads
        tiles, size, positions = -(-width * groups // QUERIES), query.shape[-1], nodes.real_positions
        parts = (self._tops, self._totals, self._sums)
        fixed = {"SIZE": size, "WINDOW": config.sliding_window or 0, "CHUNK": CHUNK, "PADDED": self._padded}
        kernels.attend_to_chunks[(rows * tiles, config.kv_heads, self._chunks)](
            query, keys, values, nodes.rows, nodes.starts, positions, self._paths, *parts,
            size**-0.5 * math.log2(math.e), first, width, nodes.memory.capacity, self._chunks, tiles,
            nodes.bucket.total, **fixed,
            HEADS=config.kv_heads, GROUPS=groups, QUERIES=QUERIES, BLOCK=BLOCKS[query.itemsize],
            enable_fp_fusion=True,
        )  # fmt: skip
        kernels.combine_chunks[(rows * width, config.num_heads)](
            *parts, positions, found, first * width, self._chunks,
            **fixed, ALL_HEADS=config.num_heads, enable_fp_fusion=True,
        )  # fmt: skip


@cache
def _kernels() -> Any:
    from oracles.graphed import kernels

    return kernels
