"""The arithmetic in which a model trains: the one that the machine multiplies faster."""

import time
from contextlib import AbstractContextManager

import torch

PRECISIONS = ("float32", "bfloat16")


def autocast(device: str, precision: str) -> AbstractContextManager[None]:
    """Return the context of a forward pass: matrix products in ``precision``, weights and sums in float32."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16")


def _seconds(dtype: torch.dtype, device: str) -> float:
    """Return the shortest time of five products like those of a training step."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, 384, generator=generator).to(device, dtype) for size in (4096, 1024))
    times = []
    for _ in range(6):
        start = time.perf_counter()
        (x @ weight.t()).sum().item()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def faster_precision(device: str) -> str:
    """Return the precision in which this device multiplies faster; bfloat16 is emulated, and slow, on many CPUs."""
    times = {precision: _seconds(getattr(torch, precision), device) for precision in PRECISIONS}
    return min(times, key=times.__getitem__)
