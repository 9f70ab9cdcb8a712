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

from specdec import SpeculativeDecoder, StepInfo
from specdec.requests import Request


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

    @property
    def ttft(self) -> float:
        """The time to first token: from the arrival, waiting for a row and the prompt's pass included."""
        return self.times[0] - self.arrival

    @property
    def e2el(self) -> float:
        """The end-to-end latency: from the arrival to the last token."""
        return self.times[-1] - self.arrival

    @property
    def tpot(self) -> float | None:
        """The time per output token after the first one; None if there is no other.

        Further tokens of the first one's step count with the others.
        """
        others = sum(self.counts) - 1
        return (self.e2el - self.ttft) / others if others else None

    @property
    def itls(self) -> list[float]:
        """The inter-token latencies: between steps, of which each may emit several tokens at once."""
        return [after - before for before, after in pairwise(self.times)]

    def keeps(self, limits: Mapping[str, float]) -> bool:
        """Tell whether it keeps every limit; with a single token it keeps the limit on time per token.

        Args:
            limits: of ``LIMITS``, in seconds.
        """
        took = {"ttft": self.ttft, "tpot": self.tpot or 0.0, "e2el": self.e2el}
        return all(took[name] <= limit for name, limit in limits.items())


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


def serve(
    decoder: SpeculativeDecoder,
    requests: Sequence[Request],
    arrivals: Sequence[float],
    batch_size: int,
    zero: float | None = None,
) -> LoadRun:
    """Decode requests as they arrive until the last one has ended; those that find no free row wait in order.

    Args:
        decoder: of the arm.
        requests: of its ``request``, each with room for a token.
        arrivals: of each, seconds from the start of the load, ascending.
        batch_size: rows in flight at most.
        zero: when the load started, by ``time.perf_counter``; None: as soon as the state is there.

    Guarantee: an arrival does not wait for answers, and is noticed when the step under way ends.
    """
    longest = max(request.max_length for request in requests)
    state = decoder.start([], batch_size=min(batch_size, len(requests)), max_length=longest)
    book, num_arrived, zero = _Book(), 0, time.perf_counter() if zero is None else zero
    while state.has_work or num_arrived < len(requests):
        began = time.perf_counter() - zero
        while num_arrived < len(requests) and arrivals[num_arrived] <= began:
            num_arrived = 1 + state.add(requests[num_arrived])
        if not state.has_work:
            time.sleep(arrivals[num_arrived] - began)
            continue
        state, info = decoder.step(state)
        book.note(info, began, time.perf_counter() - zero)
    result = decoder.finish(state)
    served = tuple(
        ServedRequest(arrival, book.seated[i], tuple(book.times[i]), tuple(book.counts[i]), tuple(result.tokens[i]))
        for i, arrival in enumerate(arrivals)
    )
    return LoadRun(served, tuple(book.steps), result.exactness)


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


@dataclass(frozen=True)
class Load:
    """One arm under one load.

    Attributes:
        rate: requests a second that were asked for.
        arm: its name.
        served: what it showed.
        window: the time that counts.
    """

    rate: float
    arm: str
    served: LoadRun
    window: Window

    @property
    def requests(self) -> list[ServedRequest]:
        """The requests that count."""
        return [request for request in self.served.requests if self.window.holds(request.arrival)]

    @property
    def mean_tpot(self) -> float | None:
        """The mean time per output token; None: no request has a second one."""
        found = [request.tpot for request in self.requests if request.tpot is not None]
        return float(np.mean(found)) if found else None

    def percentiles(self, name: str) -> list[float | None]:
        """Return P50, P95 and P99 of TTFT, TPOT, ITL or E2EL, in milliseconds; None if there are no values."""
        own = self.requests
        values: list[float] = {
            "TTFT": [request.ttft for request in own],
            "TPOT": [request.tpot for request in own if request.tpot is not None],
            "ITL": [gap for request in own for gap in request.itls],
            "E2EL": [request.e2el for request in own],
        }[name]
        if not values:
            return [None] * len(PERCENTILES)
        found: list[float | None] = np.percentile([1e3 * one for one in values], PERCENTILES).tolist()
        return found

    def goodput(self, limits: Mapping[str, float]) -> float:
        """Return the requests a second that arrived within the window and keep every limit, which is in seconds."""
        return sum(request.keeps(limits) for request in self.requests) / self.window.seconds

    @property
    def throughput(self) -> float:
        """The tokens a second that were emitted within the window."""
        emitted = sum(
            count
            for request in self.served.requests
            for time, count in zip(request.times, request.counts, strict=True)
            if self.window.holds(time)
        )
        return emitted / self.window.seconds

    @property
    def rows_in_use(self) -> float:
        """The rows in flight, mean over the time of the window."""
        shares = (self.window.share(request.seated, request.times[-1]) for request in self.served.requests)
        return sum(shares) / self.window.seconds

    @property
    def queue_growth(self) -> float:
        """By how many requests a second the queue grows: the slope of its length over the window's time.

        It is a least-squares fit over every moment. A request is in the queue from its arrival until it is seated.
        """
        window = self.window
        middle = (window.begin + window.end) / 2
        moment = 0.0
        for request in self.served.requests:
            begin, end = max(request.arrival, window.begin), min(request.seated, window.end)
            if end > begin:
                moment += (end - begin) * ((begin + end) / 2 - middle)
        return moment / (window.seconds**3 / 12)

    @property
    def is_saturated(self) -> bool | None:
        """Whether the queue keeps more than a tenth of the window's requests; None: there are fewer than ten."""
        arrived = len(self.requests)
        if arrived < ENOUGH_REQUESTS:
            return None
        return self.queue_growth > SATURATED * arrived / self.window.seconds
