"""What the field calls TTFT, TPOT, ITL, E2EL and goodput; rows in use, and whether the queue grows.

Terms are those of the serving benchmarks of vLLM and SGLang. A request counts if it arrived within the window; what it
takes is counted to its end, wherever that lies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from experiments.load.serving import Served, ServedRequest

PERCENTILES = (50, 95, 99)
# A load is saturated if the queue keeps more than this share of what arrives; so many requests at least tell.
SATURATED, ENOUGH_REQUESTS = 0.1, 10
# What a limit may bound.
LIMITS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class Window:
    """The time that counts, in seconds from the start of a load: the start is cut off, and so is what follows."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin

    def holds(self, time: float) -> bool:
        """Tell whether a time lies within it."""
        return self.begin <= time <= self.end

    def share(self, begin: float, end: float) -> float:
        """Return how many seconds of an interval lie within it."""
        return max(0.0, min(end, self.end) - max(begin, self.begin))


def counted(served: Served, window: Window) -> list[ServedRequest]:
    """Return the requests that count."""
    return [request for request in served.requests if window.holds(request.arrival)]


def ttft(request: ServedRequest) -> float:
    """Return the time to first token: from the arrival, waiting for a row and the prompt's pass included."""
    return request.times[0] - request.arrival


def e2el(request: ServedRequest) -> float:
    """Return the end-to-end latency: from the arrival to the last token."""
    return request.times[-1] - request.arrival


def tpot(request: ServedRequest) -> float | None:
    """Return the time per output token after the first one; None if there is no other.

    Tokens that stand with the first one, in the same step, count with the others.
    """
    others = sum(request.counts) - 1
    return (e2el(request) - ttft(request)) / others if others else None


def itls(request: ServedRequest) -> list[float]:
    """Return the inter-token latencies: between steps, of which each may emit several tokens at once."""
    return [after - before for before, after in pairwise(request.times)]


def percentiles(values: Sequence[float]) -> list[float | None]:
    """Return P50, P95 and P99, straight between the values; None of no values."""
    if not values:
        return [None] * len(PERCENTILES)
    found: list[float | None] = np.percentile(values, PERCENTILES).tolist()
    return found


def is_good(request: ServedRequest, limits: Mapping[str, float]) -> bool:
    """Tell whether a request keeps every limit; one of a single token keeps that of the time per token.

    Args:
        request: that ended.
        limits: of ``LIMITS``, in seconds.
    """
    took = {"ttft": ttft(request), "tpot": tpot(request) or 0.0, "e2el": e2el(request)}
    return all(took[name] <= limit for name, limit in limits.items())


def goodput(served: Served, window: Window, limits: Mapping[str, float]) -> float:
    """Return the requests a second that arrived within the window and keep every limit."""
    return sum(is_good(request, limits) for request in counted(served, window)) / window.seconds


def throughput(served: Served, window: Window) -> float:
    """Return the tokens a second that were emitted within the window."""
    emitted = sum(
        count
        for request in served.requests
        for time, count in zip(request.times, request.counts, strict=True)
        if window.holds(time)
    )
    return emitted / window.seconds


def rows_in_use(served: Served, window: Window) -> float:
    """Return the rows in flight, mean over the time of the window."""
    return sum(window.share(request.seated, request.times[-1]) for request in served.requests) / window.seconds


def queue_growth(served: Served, window: Window) -> float:
    """Return by how many requests a second the queue grows: the slope of its length over the window's time.

    It is that of least squares over every moment. A request stands in the queue from its arrival until it is seated.
    """
    middle = (window.begin + window.end) / 2
    moment = 0.0
    for request in served.requests:
        begin, end = max(request.arrival, window.begin), min(request.seated, window.end)
        if end > begin:
            moment += (end - begin) * ((begin + end) / 2 - middle)
    return moment / (window.seconds**3 / 12)


def is_saturated(served: Served, window: Window) -> bool | None:
    """Tell whether the queue keeps more than a tenth of the requests of the window; None: they are fewer than ten."""
    arrived = len(counted(served, window))
    if arrived < ENOUGH_REQUESTS:
        return None
    return queue_growth(served, window) > SATURATED * arrived / window.seconds
