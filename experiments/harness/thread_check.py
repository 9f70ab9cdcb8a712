"""Whether torch's threads have cores of their own: if not, they wait for one another."""

import sys

import torch

from experiments.harness.rounds import median_seconds

_SIZE, _CALLS, _ROUNDS = 256, 20, 9
_SUSPICIOUS = 1.5


def _seconds(num_threads: int, factor: torch.Tensor) -> float:
    """Return the median time of a round of small matrix products."""

    def multiply() -> None:
        for _ in range(_CALLS):
            factor @ factor

    torch.set_num_threads(num_threads)
    return median_seconds(multiply, _ROUNDS)


def slowdown() -> float:
    """Return the time of small matrix products with torch's present number of threads over that with one thread.

    Cost: some ten milliseconds; the number of threads is as before afterwards.
    """
    threads, factor = torch.get_num_threads(), torch.ones(_SIZE, _SIZE)
    alone = _seconds(1, factor)
    return _seconds(threads, factor) / alone


def take_threads(num_threads: int | None) -> None:
    """Set how many threads torch has (None: it stays), and tell the user if they are slower than one.

    In that case another process holds a core, and times mean little.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if torch.get_num_threads() == 1:
        return
    ratio = slowdown()
    if ratio > _SUSPICIOUS:
        print(
            f"warning: {torch.get_num_threads()} torch threads are {ratio:.1f} times slower than one here, because "
            "other processes hold their cores: times will mean little; end those, or give --threads 1",
            file=sys.stderr,
        )
