"""The roofline of this machine, times of passes after long contexts, and of prompts in chunks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from experiments.harness.findings.model_shapes import shape_of
from experiments.harness.rounds import Round, Spread, TimedArm, measure, median_seconds, repeat, waiting
from experiments.studies.limits.limit_options import LimitOptions
from oracles.checkpoints.loading import LoadedOracle
from oracles.transformer.linear import Linear
from specdec.contracts import Cache
from specdec.theory import WidthCurve
from specdec.theory.limits import BestLength, PassCost, Roofline, best_draft_length, pass_cost

# Sides of the square matrices: three of 1024 in float32 take 12 MB, and a product uses each number a thousand times.
SIDES = (256, 512, 1024)
# Longest time of a product that a larger one may follow: a dtype without kernels of its own takes far longer.
PATIENCE = 0.01
REPEATS = 20
# Plain reads: reductions by torch. None is the fastest everywhere: on the machines tried they differ by a few per cent
# beyond the caches, and by more in the last cache, where adding 64-bit integers costs least. A slow reader would only
# flatter a pass.
READERS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda words: words.sum(),
    lambda words: words.view(torch.int64).sum(),
    lambda words: torch.dot(words, words),
)


def measure_bandwidth(num_bytes: float, rounds: int = 3) -> float:
    """Return the bytes a second that all of torch's threads read, by the fastest of torch's reductions.

    Args:
        num_bytes: how many bytes are read, repeatedly. Give what a pass reads: if that fits into the processor's
            caches, their bandwidth is measured.
        rounds: the fastest counts: a roof is what the machine can do, and disturbances can only make it slower.

    Cost: three tenths of a second a round at most, or three reads of each kind; ``num_bytes`` of memory.
    """
    # Written to, because untouched memory is one page of zeros; and no denormal numbers.
    words = torch.ones(max(int(num_bytes) // 8, 1) * 2)
    readers = [partial(reader, words) for reader in READERS]
    return words.nbytes / min(median_seconds(read, REPEATS) for _ in range(rounds) for read in readers)


def measure_flops(dtype: torch.dtype, rounds: int = 3) -> float:
    """Return the FLOP/s of square matrix products on all of torch's threads.

    Args:
        dtype: of the matrices.
        rounds: the fastest counts, at the fastest side length and way to multiply: no way is fastest everywhere.

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


# Beyond the processor's caches a longer read is no slower.
LONGEST_READ = 2**29


@dataclass(frozen=True)
class LimitPasses:
    """Passes of one batch size after one context.

    Attributes:
        batch: rows.
        context: tokens of each row in the cache.
        seconds: width -> of a pass; widths ascend from 1.
        costs: width -> what the pass does at least.
        roofline: of the machine, for as many bytes as a pass of one node reads.
    """

    batch: int
    context: int
    seconds: dict[int, Spread]
    costs: dict[int, PassCost]
    roofline: Roofline

    @property
    def curves(self) -> dict[str, WidthCurve]:
        """Return v by the "measured" times, and by the least ones that the "roofline" allows."""
        kinds = {
            "measured": [spread.median for spread in self.seconds.values()],
            "roofline": [self.roofline.seconds(cost) for cost in self.costs.values()],
        }
        return {kind: WidthCurve.of_seconds([*self.seconds], times, self.batch) for kind, times in kinds.items()}

    def best_draft(self, kind: str, alpha: float, draft_cost: float) -> BestLength:
        """Return the draft length that gains most by one of the curves; lengths end where the widest pass does."""
        return best_draft_length(alpha, self.curves[kind], draft_cost, max(self.seconds) - 1)


def random_cache(oracle: LoadedOracle, batch: int, context: int, room: int) -> Cache:
    """Return a cache whose rows hold ``context`` tokens of random keys and values, and have ``room`` for more.

    No prompt is scored for it: a pass takes the same time whatever the numbers are.
    """
    cache, rows = oracle.new_cache(batch, context + room), np.arange(batch)
    for tensor in cache.tensors:
        tensor.uniform_(-1.0, 1.0, generator=torch.Generator(tensor.device).manual_seed(0))
    cache.reserve(rows, context)
    cache.commit(rows, None, np.full(batch, context))
    return cache


def pass_arms(
    oracle: LoadedOracle, cache: Cache, widths: Sequence[int], repeats: int, before: str = ""
) -> list[TimedArm]:
    """Return passes with logits of every node on one cache: an arm for each width, named ``before`` and the width.

    Args:
        oracle: scores.
        cache: of rows that are filled.
        widths: nodes a row.
        repeats: passes a round at most.
        before: begins the names.
    """
    arms, rows, place = [], np.arange(len(cache.lengths)), oracle.device
    for width in widths:
        tokens = torch.ones(len(rows), width, dtype=torch.int64, device=place)
        nodes = torch.full((len(rows),), width, device=place)
        score = partial(oracle.score, tokens, None, nodes, cache, rows, "all")  # type: ignore[arg-type]
        arms.append(TimedArm(f"{before}{width}", partial(repeat, waiting(score, place), repeats)))
    return arms


def measure_passes(
    oracle: LoadedOracle,
    batch: int,
    context: int,
    widths: Sequence[int],
    options: LimitOptions,
    flops_per_second: float,
) -> LimitPasses:
    """Return the times of passes with logits of every node, interleaved by width, and the bandwidth right after.

    Args:
        oracle: scores.
        batch, context: rows, and the tokens that each holds.
        widths: nodes a row.
        options: say how often.
        flops_per_second: of the machine.
    """
    cache, shape = random_cache(oracle, batch, context, max(widths)), shape_of(oracle)
    arms = pass_arms(oracle, cache, widths, options.repeats)
    timings = measure(arms, options.rounds, f"batch {batch} after {context}")
    costs = {width: pass_cost(shape, batch, width, context) for width in widths}
    bandwidth = measure_bandwidth(min(costs[min(widths)].bytes, LONGEST_READ), options.rounds)
    seconds = {width: timings.spread(f"{width}") for width in widths}
    return LimitPasses(batch, context, seconds, costs, Roofline(bandwidth, flops_per_second))


@dataclass(frozen=True)
class Prefill:
    """A prompt in chunks.

    Attributes:
        chunk: tokens of a pass.
        seconds: of the whole prompt.
        longest: seconds of its longest pass, for which rows that decode beside it wait.
    """

    chunk: int
    seconds: Spread
    longest: Spread


def measure_prefill(oracle: LoadedOracle, length: int, chunks: Sequence[int], rounds: int, title: str) -> list[Prefill]:
    """Return the times of one prompt of ``length`` tokens, taken in chunks of each size; interleaved by size."""
    cache = oracle.new_cache(1, length)
    arms = [TimedArm(f"{chunk}", partial(_prefill, oracle, cache, length, chunk)) for chunk in chunks]
    timings = measure(arms, rounds, title)
    return [Prefill(c, timings.spread(f"{c}"), Spread.of(timings.facts[f"{c}"])) for c in chunks]


def _prefill(oracle: LoadedOracle, cache: Cache, length: int, chunk: int) -> Round:
    """Time a prompt, and its longest pass."""
    row, times = np.arange(1), []
    cache.truncate(row, np.zeros(1, dtype=np.int64))
    for start in range(0, length, chunk):
        count = min(chunk, length - start)
        tokens, nodes = torch.ones(1, count, dtype=torch.int64), torch.tensor([count])
        began = time.perf_counter()
        want = "last" if start + count == length else "none"
        oracle.score(tokens, None, nodes, cache, row, want)  # type: ignore[arg-type]
        cache.commit(row, None, np.array([count]))
        times.append(time.perf_counter() - began)
    return Round(sum(times), facts=max(times))
