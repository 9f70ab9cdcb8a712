"""A run under way, and one step's view of it."""

import time
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from threading import get_ident
from typing import NamedTuple

import numpy as np

from specdec.contracts import (
    BoolArray,
    Budget,
    Context,
    DraftSession,
    IntArray,
    Randomness,
    StepInfo,
    close_session,
)
from specdec.engine.metering import Meter
from specdec.engine.seating import INSIDE, Seating, enter, leave
from specdec.engine.slots import IDLE, Slots
from specdec.requests import FinishReason, Request
from specdec.sampling import BatchWarping, ParameterTable, seed_keys
from specdec.stats import StatsRecorder
from specdec.transfers import StagedValues


@dataclass(frozen=True)
class SeatedRows:
    """The rows in flight and what does not change while they are: its arrays serve many steps; nobody writes to them.

    Attributes:
        rows: ``[B]``, ascending.
        requests: ``[B]`` the run's index of each row's request.
        params, keys: of these requests.
        prompt_lengths, max_lengths: ``[B]``.
        ignore_eos: ``[B]`` bool.
        with_stops: indices into the rows of the requests that a stop may end; a grammar counts as a stop.
    """

    rows: IntArray
    requests: IntArray
    params: ParameterTable
    keys: IntArray
    prompt_lengths: IntArray
    max_lengths: IntArray
    ignore_eos: BoolArray
    with_stops: IntArray


@dataclass
class State:
    """A run under way: what the next step needs, and what the result tells.

    Guarantee: after an interrupted step no other one is taken: the state refuses to go on, and ``emitted`` still tells
        what stands.
    """

    requests: InitVar[Sequence[Request]]
    num_rows: InitVar[int]
    capacity: InitVar[int]
    seating: Seating
    session: DraftSession
    meter: Meter | None
    return_logprobs: bool
    slots: Slots = field(init=False)
    params: ParameterTable = field(init=False)
    keys: IntArray = field(init=False)
    recorder: StatsRecorder = field(init=False)
    outputs: list[list[int]] = field(init=False)
    finish_reasons: list[FinishReason] = field(init=False)
    cache_bytes: int = field(init=False)
    judges: set[str] = field(default_factory=set)
    drafters: set[str] = field(default_factory=set)
    started: float = field(init=False)
    _seated: SeatedRows | None = None
    _in_step: bool = False

    def __post_init__(self, requests: Sequence[Request], num_rows: int, capacity: int) -> None:
        self.started = time.perf_counter()
        self.slots = Slots(requests, num_rows, capacity)
        self.params = ParameterTable.of([r.sampling for r in requests], [r.grammar for r in requests])
        self.keys = seed_keys([r.seed for r in requests])
        self.recorder = StatsRecorder(len(requests))
        self.outputs, self.finish_reasons = [[] for _ in requests], ["length" for _ in requests]
        self.cache_bytes = self.seating.cache.bytes  # at the end, a cache that lacks it would cost the result
        self.seating.share(self.session)

    @property
    def has_work(self) -> bool:
        """Whether a request is in flight, waits, or is still to come."""
        return bool(self.slots.to_come) or self.can_step  # in this order: see arrive

    @property
    def can_step(self) -> bool:
        """Whether a request is in flight or waits: False if all that are left have not arrived."""
        return bool(self.slots.waiting) or self.slots.rows.size > 0

    def hold_back(self) -> None:
        """Have each waiting request wait for ``arrive`` first, for loads in which requests come one by one."""
        self.slots.to_come.update(self.slots.waiting)
        self.slots.waiting.clear()

    def arrive(self, request: int) -> None:
        """Let a request that was held back, by its place in the run, be seated from the next step on.

        Raises:
            ValueError: it was not held back, or has arrived before.

        Guarantee: if the result is reproducible, its tokens do not depend on when it arrives.
        """
        if request not in self.slots.to_come:
            told = "it has arrived before, has no room for a token, or is none of this run"
            raise ValueError(f"request {request} is not held back: {told}")
        self.slots.waiting.append(request)  # first: there is work at any time, or a loop in another thread would end
        self.slots.to_come.remove(request)

    def begin_step(self) -> None:
        """Note that cache, books and session are about to change, one after the other.

        Raises:
            ValueError: nothing is in flight and nothing waits, or an earlier step was interrupted.
            RuntimeError: another thread is in the middle of a step, see ``enter``.
        """
        if self.seating.turn.setdefault(INSIDE, get_ident()) != get_ident():
            enter(self.seating.turn)
        if self._in_step:
            self.check_whole()
        if not self.can_step:
            if self.slots.to_come:
                raise ValueError("no request is there yet, and some are to come: call state.arrive(request) first")
            raise ValueError("state has no work left; call finish(state) for the result")
        self._in_step = True

    def now(self) -> float:
        """Return the time in seconds, and mark it on a device; a step's work there counts from its first mark."""
        now = time.perf_counter()
        if self.meter is not None:
            self.meter.mark()
        return now

    def end_step(self, info: StepInfo, judge: str, drafter: str, is_native: bool) -> None:
        """Take in the record of a step, and note that cache, books and session agree again.

        Args:
            info: the record.
            judge: who judged, as results name it.
            drafter: name of the source.
            is_native: whether its draft was made in one call of compiled code.
        """
        self.judges.add(judge)
        if info.num_nodes > 1:
            self.drafters.add(f"native: {drafter}" if is_native else drafter)
        self.recorder.infos.append(info)
        self.recorder.elapsed.append(time.perf_counter() - self.started)
        if self.meter is not None:
            self.meter.end(info.seconds)
        self._in_step = False
        self.seating.turn.clear()

    def leave_step(self, began: bool) -> None:
        """Let other threads take steps after one that did not come to its end.

        Args:
            began: whether it had begun; if so, the run cannot go on, and its pages are freed.
        """
        try:
            if began and self._in_step:
                self.seating.give_up()
        finally:
            leave(self.seating.turn)

    def end_run(self) -> None:
        """Let the draft source keep what a run leaves for later ones.

        Raises:
            ValueError: a request is in flight or waits, or a step was interrupted.
        """
        self.check_whole()
        if self.has_work:
            raise ValueError("state has work left: call step until state.has_work is False, then finish")
        close_session(self.session)

    def check_whole(self) -> None:
        """Raise ValueError if a step was interrupted: to go on from there could write other tokens."""
        if self._in_step:
            raise ValueError(
                "a step of this state was interrupted, by an error or by Ctrl-C, so that its cache and its texts may "
                "disagree, and it cannot go on: call start again; state.emitted() has what was emitted so far"
            )

    def check_progress(self) -> None:
        """Raise ValueError if requests wait and none is in flight: others have the pages that they wait for."""
        if not self.slots.rows.size:
            self._in_step = False  # nothing was touched yet: the step may be asked for again
            raise ValueError(
                "no request of this run finds the pages that it needs, for another run of this decoder has them: "
                "finish that one first, or raise max_cache_bytes"
            )

    def emitted(self) -> list[list[int]]:
        """Return the new ids of each request so far: of those that ended, and of those in flight.

        Guarantee: the ids of an interrupted step are there for all of its rows or for none; either way it is the
            beginning of the output that an uninterrupted run writes.
        """
        found = [list(output) for output in self.outputs]
        for row, request in enumerate(self.slots.occupants):
            if request != IDLE:
                found[request] = self.slots.output(row)
        return found

    @property
    def seated(self) -> SeatedRows:
        """Who is in flight; looked up anew when a row was seated or freed."""
        slots, rows = self.slots, self.slots.rows
        if self._seated is None or self._seated.rows is not rows:
            requests = slots.occupants[rows]
            asked = [slots.requests[request] for request in requests]
            self._seated = SeatedRows(
                rows,
                requests,
                self.params.select(requests),
                self.keys[requests],
                slots.prompt_lengths[rows],
                np.array([r.max_length for r in asked], dtype=np.int64),
                np.array([r.sampling.ignore_eos for r in asked], dtype=np.bool_),
                np.flatnonzero([bool(r.stop_strings or r.stop_ids or r.grammar) for r in asked]),
            )
        return self._seated


class Frame(NamedTuple):
    """One step's rows, and what the source, the rule and the draws are told of them.

    Attributes:
        seated: the rows, and what does not change while they are in flight.
        pending: ``[B]`` their last ids, which no source can write to.
        context, warping, budget, randomness: of these rows.
        return_logprobs: whether log-probabilities are asked for.
        uploads: what goes to a device with the step's copies, and stays there until the step ends.
    """

    seated: SeatedRows
    pending: IntArray
    context: Context
    warping: BatchWarping
    budget: Budget
    randomness: Randomness
    return_logprobs: bool
    uploads: list[StagedValues]
