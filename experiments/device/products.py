"""Matrix products by rows: their time, and whether a row's bits depend on the other rows."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from experiments.device.device_models import SHAPES, seconds_of
from experiments.device.device_options import Options
from oracles.graphed.tiles import TILE
from oracles.graphed.triton_attention import why_not
from oracles.transformer.bits import SEEDS

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
# Sizes of the kernel's tiles: rows, columns, and what is summed at once.
_TILES = {"ROWS": 16, "COLUMNS": 64, "BLOCK": 64}

Product = Callable[[Tensor, Tensor], Tensor]


def products(options: Options) -> list[dict[str, Any]]:
    """Return a row for each shape and number of rows, with figures of a layer's widest product in several ways.

    Bits are kept if each of the first rows is, alone, what it is among all.
    """
    rows = []
    for name, count in product(options.shapes, ROWS):
        config, dtype = SHAPES[name], getattr(torch, options.dtype)
        weight = torch.randn(config.intermediate_size, config.hidden_size, device=options.place).to(dtype)
        row: dict[str, Any] = {"shape": name, "rows": count}
        for kind, compute in ways(options.place, dtype).items():
            x = torch.zeros(count, config.hidden_size, dtype=dtype, device=options.place)
            row[f"bits kept, {kind}"] = all(_keeps_bits(compute, x, weight, seed) for seed in SEEDS)
            row[f"us, {kind}"] = 1e6 * seconds_of(partial(compute, x, weight), options.place, options.repeats)
        rows.append(row)
    return rows


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
    from experiments.device.product_kernel import product_kernel

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
