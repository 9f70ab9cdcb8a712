"""A run under way, and one step's view of it."""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from specdec.contracts import BoolArray, Budget, Cache, Context, DraftSession, IntArray, Randomness
from specdec.engine.metering import Meter
from specdec.engine.slots import Slots
from specdec.requests import FinishReason
from specdec.stats import StatsRecorder
from specdec.warping import BatchWarping, ParameterTable


@dataclass(frozen=True)
class Seated:
    """The rows in flight and what does not change while they are: its arrays serve many steps, and nobody writes them.

    Attributes:
        rows: ``[B]``, ascending.
        requests: ``[B]`` the run's index of each row's request.
        params, keys: of these requests.
        prompt_lengths, max_lengths: ``[B]``.
        ignore_eos: ``[B]`` bool.
        ignores_eos: the same as bytes, for compiled code.
        with_stops: indices into the rows of those that a stop may end.
    """

    rows: IntArray
    requests: IntArray
    params: ParameterTable
    keys: IntArray
    prompt_lengths: IntArray
    max_lengths: IntArray
    ignore_eos: BoolArray
    ignores_eos: bytes
    with_stops: IntArray


@dataclass
class State:
    """A run under way: what the next step needs, and what the result tells."""

    slots: Slots
    cache: Cache
    session: DraftSession
    params: ParameterTable
    keys: IntArray
    recorder: StatsRecorder
    return_logprobs: bool
    outputs: list[list[int]]
    finish_reasons: list[FinishReason]
    meter: Meter
    judges: set[str] = field(default_factory=set)
    started: float = field(default_factory=time.perf_counter)
    _seated: Seated | None = None

    @property
    def has_work(self) -> bool:
        """Whether a request is in flight or waits."""
        return self.slots.has_work

    @property
    def seated(self) -> Seated:
        """Who is in flight; looked up anew when a row was seated or freed."""
        slots, rows = self.slots, self.slots.rows
        if self._seated is None or self._seated.rows is not rows:
            requests = slots.occupants[rows]
            self._seated = Seated(
                rows,
                requests,
                self.params.select(requests),
                self.keys[requests],
                slots.prompt_lengths[rows],
                slots.max_lengths[rows],
                slots.ignore_eos[rows],
                slots.ignore_eos[rows].tobytes(),
                np.flatnonzero(slots.has_stops[rows]),
            )
        return self._seated


class Frame(NamedTuple):
    """One step's rows, and what the source, the rule and the draws are told of them.

    Attributes:
        seated: the rows.
        context, warping, budget, randomness: of them.
        pending: ``[B]`` the last committed id of each row.
    """

    seated: Seated
    context: Context
    warping: BatchWarping
    budget: Budget
    randomness: Randomness
    pending: IntArray

    @property
    def rows(self) -> IntArray:
        """``[B]`` cache rows."""
        return self.seated.rows

    @property
    def requests(self) -> IntArray:
        """``[B]`` the run's index of each row's request."""
        return self.seated.requests
