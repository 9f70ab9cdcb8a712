"""Serve requests that arrive over time, and keep when each of them had which tokens."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specdec import SamplingParams, SpeculativeDecoder, State, StepInfo
from specdec.requests import Prompt


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
        nodes: scored in all rows, the pending tokens among them.
        seconds: "propose", "score", "rest" (verify and commit) and "other", which holds the prompts' passes.
    """

    rows: int
    seated: int
    emitted: int
    nodes: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Served:
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
    def from_dict(plain: Mapping[str, Any]) -> "Served":
        """Return what ``as_dict`` made, JSON's lists among it."""
        requests = tuple(
            ServedRequest(one["arrival"], one["seated"], *(tuple(one[name]) for name in ("times", "counts", "tokens")))
            for one in plain["requests"]
        )
        return Served(requests, tuple(ServedStep(**step) for step in plain["steps"]), plain["claim"])


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
    prompts: Sequence[Prompt],
    arrivals: Sequence[float],
    batch_size: int,
    max_new_tokens: int,
    sampling: SamplingParams,
    seed: int,
) -> Served:
    """Decode requests as they arrive until the last one has ended; whoever finds no row free waits, first come first.

    Args:
        decoder: of the arm.
        prompts: of the requests, each with room for a token.
        arrivals: of each, seconds from the start, ascending.
        batch_size: rows.
        max_new_tokens: of each.
        sampling: of each.
        seed: request i has the seed (seed, i).

    Guarantee: an arrival does not wait for answers, and is seen when the step under way ends.
    """
    seeds = [(seed, number) for number in range(len(prompts))]
    state = decoder.start(prompts, max_new_tokens, sampling, seeds, batch_size=batch_size)
    state.hold_back()
    book, num_arrived, zero = _Book(), 0, time.perf_counter()
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
    return Served(requests, tuple(book.steps), result.exactness)


def _let_in(state: State, arrivals: Sequence[float], num_arrived: int, now: float) -> int:
    """Let those in who have arrived by now, and return how many there are in all."""
    while num_arrived < len(arrivals) and arrivals[num_arrived] <= now:
        state.arrive(num_arrived)
        num_arrived += 1
    return num_arrived
