"""The roofline of this machine, measured: how fast all threads read, and how fast they multiply."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from experiments.bench.oracle.bandwidth import READERS
from experiments.bench.oracle.rounds import median_seconds
from oracles.transformer.linear import Linear

# Sides of the square matrices: three of 1024 in float32 take 12 MB, and a product uses each number a thousand times.
SIDES = (256, 512, 1024)
# Longest time of a product that a larger one may follow: a dtype without kernels of its own takes far longer.
PATIENCE = 0.01
REPEATS = 20


def measure_bandwidth(num_bytes: float, rounds: int = 3) -> float:
    """Return the bytes a second that all of torch's threads read, by the fastest of torch's reductions.

    Args:
        num_bytes: how many bytes are read, again and again. Give what a pass reads: if it fits into the processor's
            caches, their bandwidth is measured.
        rounds: the fastest counts: a roof is what the machine can do, and what disturbs it makes it slower only.

    Cost: three tenths of a second a round at most, or three reads of each kind; ``num_bytes`` of memory.
    """
    # Written to, because untouched memory is one page of zeros.
    words = torch.ones(max(int(num_bytes) // 8, 1) * 2)
    readers = [partial(reader, words) for reader in READERS.values()]
    return words.nbytes / min(median_seconds(read, REPEATS) for _ in range(rounds) for read in readers)


def measure_flops(dtype: torch.dtype, rounds: int = 3) -> float:
    """Return the FLOP/s of square matrix products on all of torch's threads.

    Args:
        dtype: of the matrices.
        rounds: the fastest counts, of the fastest side and the fastest of the ways to multiply: none is so everywhere.

    Cost: a tenth of a second a round for each side and way.
    """
    fastest = 0.0
    for side in SIDES:
        seconds = min(median_seconds(multiply, REPEATS) for _ in range(rounds) for multiply in _products(dtype, side))
        fastest = max(fastest, 2 * side**3 / seconds)
        if seconds > PATIENCE * (side / SIDES[0]) ** 3:
            break
    return fastest


def _products(dtype: torch.dtype, side: int) -> list[Callable[[], Tensor]]:
    """Return ways to multiply a matrix with its transpose: torch's own, and with it laid out as eager passes do."""
    factor = torch.rand(side, side, generator=torch.Generator().manual_seed(0)).to(dtype)
    turned = factor.t().contiguous()
    found: list[Callable[[], Tensor]] = [partial(torch.mm, factor, turned, out=torch.empty_like(factor))]
    if dtype == torch.float32:
        layer = Linear.of(factor)
        layer.pack()
        found.append(partial(layer, factor))
    return found
