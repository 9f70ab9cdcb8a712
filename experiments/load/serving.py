"""Serve requests that arrive over time, and what the field calls TTFT, TPOT, ITL, E2EL and goodput.

Terms are those of the serving benchmarks of vLLM and SGLang. A request counts if it arrived within the window; its
times are taken to its end, wherever that is.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from specdec import SpeculativeDecoder, State, StepInfo


@dataclass(frozen=True)
class ServedRequest:
    """A request and what became of it; times are seconds from the start of the load.

    Attributes:
        arrival: when it arrived.
        seated: when the step began that seated it in a row.
        times: the ends of its steps.
        counts: tokens that each of them emitted.
        tokens: its output.
    """

    arrival: float
    seated: float
    times: tuple[float, ...]
    counts: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class ServedStep:
    """A step of all rows in flight.

    Attributes:
        rows: in flight.
        seated: requests that it seated, their prompts' passes included.
        emitted: tokens, of all rows.
        nodes: scored in all rows, the pending tokens included.
        seconds: "propose", "score", "rest" (verify and commit) and "other", which holds the prompts' passes.
    """

    rows: int
    seated: int
    emitted: int
    nodes: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class LoadRun:
    """What one load showed of one arm.

    Attributes:
        requests: in the order of their arrival.
        steps: in their order.
        claim: what the result says of its exactness.
    """

    requests: tuple[ServedRequest, ...]
    steps: tuple[ServedStep, ...]
    claim: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain types, for a journal."""
        return asdict(self)

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "LoadRun":
        """Return what ``as_dict`` made, JSON's lists among it."""
        requests = tuple(
            ServedRequest(one["arrival"], one["seated"], *(tuple(one[name]) for name in ("times", "counts", "tokens")))
            for one in plain["requests"]
        )
        return LoadRun(requests, tuple(ServedStep(**step) for step in plain["steps"]), plain["claim"])


@dataclass
class _Book:
    """What is written down while a load runs, by request."""

    seated: dict[int, float] = field(default_factory=dict)
    times: dict[int, list[float]] = field(default_factory=dict)
    counts: dict[int, list[int]] = field(default_factory=dict)
    steps: list[ServedStep] = field(default_factory=list)

    def note(self, info: StepInfo, began: float, ended: float) -> None:
        """Take a step in."""
        new = [request for request in info.requests.tolist() if request not in self.seated]
        self.seated.update(dict.fromkeys(new, began))
        for request, count in zip(info.requests.tolist(), info.num_emitted.tolist(), strict=True):
            self.times.setdefault(request, []).append(ended)
            self.counts.setdefault(request, []).append(count)
        drafted = int(info.num_drafted.sum() + info.num_scouts.sum())
        parts = {"propose": info.seconds["propose"], "score": info.seconds["score"]}
        parts["rest"] = info.seconds["verify"] + info.seconds["commit"]
        parts["other"] = ended - began - sum(parts.values())
        rows, emitted = len(info.requests), int(info.num_emitted.sum())
        self.steps.append(ServedStep(rows, len(new), emitted, rows + drafted, parts))


def serve(decoder: SpeculativeDecoder, state: State, arrivals: Sequence[float], zero: float | None = None) -> LoadRun:
    """Decode requests as they arrive until the last one has ended; those that find no free row wait in order.

    Args:
        decoder: of the arm.
        state: from its ``start``, with the prompts of the requests, each with room for a token.
        arrivals: of each, seconds from the start of the load, ascending.
        zero: when the load started, by ``time.perf_counter``; None: now.

    Guarantee: an arrival does not wait for answers, and is noticed when the step under way ends.
    """
    state.hold_back()
    book, num_arrived, zero = _Book(), 0, time.perf_counter() if zero is None else zero
    while state.has_work:
        began = time.perf_counter() - zero
        num_arrived = _let_in(state, arrivals, num_arrived, began)
        if not state.can_step:
            time.sleep(arrivals[num_arrived] - began)
            continue
        state, info = decoder.step(state)
        book.note(info, began, time.perf_counter() - zero)
    result = decoder.finish(state)
    requests = tuple(
        ServedRequest(arrival, book.seated[i], tuple(book.times[i]), tuple(book.counts[i]), tuple(result.tokens[i]))
        for i, arrival in enumerate(arrivals)
    )
    return LoadRun(requests, tuple(book.steps), result.exactness)


def _let_in(state: State, arrivals: Sequence[float], num_arrived: int, now: float) -> int:
    """Let those in who have arrived by now, and return how many there are in all."""
    while num_arrived < len(arrivals) and arrivals[num_arrived] <= now:
        state.arrive(num_arrived)
        num_arrived += 1
    return num_arrived


PERCENTILES = (50, 95, 99)
# A load is saturated if the queue keeps more than this share of what arrives; so many requests at least tell.
SATURATED, ENOUGH_REQUESTS = 0.1, 10
# What a limit may bound.
LIMITS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class Window:
    """The time that counts, in seconds from the start of a load: the load's start and what follows are cut off."""

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


def requests_within(served: LoadRun, window: Window) -> list[ServedRequest]:
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

    Further tokens of the first one's step count with the others.
    """
    others = sum(request.counts) - 1
    return (e2el(request) - ttft(request)) / others if others else None


def itls(request: ServedRequest) -> list[float]:
    """Return the inter-token latencies: between steps, of which each may emit several tokens at once."""
    return [after - before for before, after in pairwise(request.times)]


def percentiles(values: Sequence[float]) -> list[float | None]:
    """Return P50, P95 and P99, linear between the values; None if there are no values."""
    if not values:
        return [None] * len(PERCENTILES)
    found: list[float | None] = np.percentile(values, PERCENTILES).tolist()
    return found


def is_good(request: ServedRequest, limits: Mapping[str, float]) -> bool:
    """Tell whether a request keeps every limit; one with a single token keeps the limit on time per token.

    Args:
        request: that ended.
        limits: of ``LIMITS``, in seconds.
    """
    took = {"ttft": ttft(request), "tpot": tpot(request) or 0.0, "e2el": e2el(request)}
    return all(took[name] <= limit for name, limit in limits.items())


def goodput(served: LoadRun, window: Window, limits: Mapping[str, float]) -> float:
    """Return the requests a second that arrived within the window and keep every limit."""
    return sum(is_good(request, limits) for request in requests_within(served, window)) / window.seconds


def throughput(served: LoadRun, window: Window) -> float:
    """Return the tokens a second that were emitted within the window."""
    emitted = sum(
        count
        for request in served.requests
        for time, count in zip(request.times, request.counts, strict=True)
        if window.holds(time)
    )
    return emitted / window.seconds


def rows_in_use(served: LoadRun, window: Window) -> float:
    """Return the rows in flight, mean over the time of the window."""
    return sum(window.share(request.seated, request.times[-1]) for request in served.requests) / window.seconds


def queue_growth(served: LoadRun, window: Window) -> float:
    """Return by how many requests a second the queue grows: the slope of its length over the window's time.

    It is a least-squares fit over every moment. A request is in the queue from its arrival until it is seated.
    """
    middle = (window.begin + window.end) / 2
    moment = 0.0
    for request in served.requests:
        begin, end = max(request.arrival, window.begin), min(request.seated, window.end)
        if end > begin:
            moment += (end - begin) * ((begin + end) / 2 - middle)
    return moment / (window.seconds**3 / 12)


def is_saturated(served: LoadRun, window: Window) -> bool | None:
    """Tell whether the queue keeps more than a tenth of the window's requests; None: there are fewer than ten."""
    arrived = len(requests_within(served, window))
    if arrived < ENOUGH_REQUESTS:
        return None
    return queue_growth(served, window) > SATURATED * arrived / window.seconds
