"""A run under way, and one step's view of it."""

import time
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from threading import get_ident
from typing import NamedTuple

import numpy as np

from specdec.contracts import (
    BoolArray,
    Budget,
    Context,
    DraftSession,
    Ending,
    IntArray,
    Randomness,
    StepInfo,
    close_session,
)
from specdec.engine.metering import Meter
from specdec.engine.seating import INSIDE, Seating, alone, enter, leave
from specdec.engine.slots import IDLE, Slots
from specdec.requests import FinishReason, Request
from specdec.sampling import BatchWarping, ParameterTable, seed_keys
from specdec.stats import StatsRecorder, count_of
from specdec.transfers import StagedValues

# More tokens than any draft has.
_LONGEST = 2**31


@dataclass(frozen=True)
class SeatedRows:
    """The rows in flight and what does not change while they are: its arrays serve many steps; nobody writes to them.

    Attributes:
        rows: ``[B]``, ascending.
        requests: ``[B]`` the run's index of each row's request.
        params, keys: of these requests.
        prompt_lengths, max_lengths: ``[B]``.
        ignore_eos: ``[B]`` bool.
        max_drafts: ``[B]`` tokens along a path of their drafts, at most.
        with_stops: indices into the rows of the requests that a stop may end; a grammar counts as a stop.
    """

    rows: IntArray
    requests: IntArray
    params: ParameterTable
    keys: IntArray
    prompt_lengths: IntArray
    max_lengths: IntArray
    ignore_eos: BoolArray
    max_drafts: IntArray
    with_stops: IntArray


@dataclass
class State:
    """A run under way: what the next step needs, and what the result tells.

    Args:
        requests: that are there at the start.
        num_rows: requests in flight at most.
        max_length: ids, prompt and output together, of the longest request that a row has room for.
        slack: slots that a step may write beyond them.

    Guarantee: after an interrupted step no other one is taken: the state refuses to go on, and ``emitted`` still tells
        what stands.
    """

    requests: InitVar[Sequence[Request]]
    num_rows: InitVar[int]
    max_length: int
    slack: InitVar[int]
    seating: Seating
    session: DraftSession
    meter: Meter | None
    return_logprobs: bool
    slots: Slots = field(init=False)
    params: ParameterTable = field(init=False)
    keys: IntArray = field(init=False)
    recorder: StatsRecorder = field(init=False)
    outputs: list[list[int]] = field(init=False)
    finish_reasons: list[FinishReason | None] = field(init=False)
    cache_bytes: int = field(init=False)
    judges: set[str] = field(default_factory=set)
    drafters: set[str] = field(default_factory=set)
    started: float = field(init=False)
    _seated: SeatedRows | None = None
    _in_step: bool = False
    _has_ended: bool = False

    def __post_init__(self, requests: Sequence[Request], num_rows: int, slack: int) -> None:
        self.started = time.perf_counter()
        self.slots = Slots(num_rows, self.max_length + slack)
        self.params, self.keys, self.recorder = ParameterTable.of([], []), seed_keys([]), StatsRecorder(0)
        self.outputs, self.finish_reasons = [], []
        self._take(requests, 0.0)
        self.cache_bytes = self.seating.cache.bytes  # at the end, a cache that lacks it would cost the result
        self.seating.share(self.session)

    @property
    def has_work(self) -> bool:
        """Whether a request is in flight or waits; ask between two steps."""
        return bool(self.slots.waiting) or self.slots.rows.size > 0 or self.slots.has_new

    def add(self, request: Request) -> int:
        """Let a request, of ``SpeculativeDecoder.request``, be seated from the next step on.

        Another thread may be in a step meanwhile, but not in ``add``.

        Returns:
            Its place in the run, by which the records of steps, ``cancel`` and the result know it.

        Raises:
            ValueError: the state was finished, or it has no rows, or no room for the request.

        Guarantee: if the result is reproducible, its tokens do not depend on when it is added, nor on its batch-mates.
        Cost: O(requests of the run so far).
        """
        number = len(self.slots.requests)
        if self._has_ended:
            raise ValueError("this state was finished: call start for a new one")
        if not len(self.slots.occupants):
            raise ValueError("this state has no rows: give start a batch_size and a max_length")
        if request.max_length > self.max_length:
            raise ValueError(
                f"request {number} may have {request.max_length} ids, and rows of this state have room for "
                f"{self.max_length}: give start max_length={request.max_length}, or lower max_new_tokens"
            )
        if request.grammar is not None:
            grammar = request.grammar.of_another(f"request {number}", len(request.prompt))
            request = replace(request, grammar=grammar)
        self._take([request], time.perf_counter() - self.started)
        return number

    def _take(self, requests: Sequence[Request], arrival: float) -> None:
        """Take in requests that arrived so many seconds after the start, in place of what an interrupted call left."""
        first = len(self.slots.requests)
        for number, request in enumerate(requests, first):
            self.seating.check_room(number, request.max_length)
        table = ParameterTable.of([r.sampling for r in requests], [r.grammar for r in requests])
        self.params = self.params.joined_with(table, first)
        self.keys = np.append(self.keys[:first], seed_keys([r.seed for r in requests]))
        self.recorder.arrivals[first:] = [arrival] * len(requests)
        self.outputs[first:] = [[] for _ in requests]
        self.finish_reasons[first:] = [None if r.max_length > len(r.prompt) else "length" for r in requests]
        self.slots.requests.extend(requests)  # at one blow, and last: now they are there, also for a step in a thread

    def cancel(self, request: int) -> None:
        """End a request, between two steps, wherever it is; one that has ended stays as it is.

        What it has emitted stands, and its finish reason is "cancelled".

        Raises:
            ValueError: there is no such request, this is called within a step, or a step or a cancel was interrupted.
            RuntimeError: another thread is in the middle of a step.

        Guarantee: the tokens of other requests do not change if the result is reproducible.
        """
        if not 0 <= request < (count := len(self.slots.requests)):
            raise ValueError(f"request {request} is none of this run: it has {count_of(count, 'request')}")
        if self.seating.turn.get(INSIDE) == get_ident():
            raise ValueError(f"request {request} is cancelled in the middle of a step: cancel it between two steps")
        alone(self.seating.turn, partial(self._cancel, request))

    def _cancel(self, request: int) -> None:
        self.check_whole()
        if self.finish_reasons[request] is not None:
            return
        try:
            self._in_step = True  # cache, books and session change one after the other
            self.slots.queue()
            if (rows := np.flatnonzero(self.slots.occupants == request)).size:
                self.retire(rows, np.zeros(1, dtype=np.int64))
            else:
                self.slots.waiting.remove(request)
            self.finish_reasons[request] = "cancelled"
            self._in_step = False
        except BaseException:
            if self._in_step:
                self.seating.give_up()
            raise

    def retire(self, rows: IntArray, endings: IntArray) -> None:
        """Store the outputs of rows ``[R]`` whose requests have ended, with their ``Ending``, and free the rows."""
        for row, ending in zip(rows, endings, strict=True):
            request = self.slots.occupants[row]
            self.outputs[request] = self.slots.output(row)
            self.finish_reasons[request] = Ending(ending).word if ending else "length"  # type: ignore[assignment]
            self.seating.leave(int(row), self.slots.ids[row, : self.slots.num_committed[row]])
        self.session.end(rows.copy())
        self.slots.release(rows)

    def begin_step(self) -> None:
        """Note that cache, books and session are about to change, one after the other.

        Raises:
            ValueError: an earlier step was interrupted.
            RuntimeError: another thread is in the middle of a step, see ``enter``.
        """
        if self.seating.turn.setdefault(INSIDE, get_ident()) != get_ident():
            enter(self.seating.turn)
        if self._in_step:
            self.check_whole()
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
        self._has_ended = True
        self._take([], 0.0)  # what an interrupted add left goes
        close_session(self.session)

    def check_whole(self) -> None:
        """Raise ValueError if a step or ``cancel`` was interrupted: to go on could write other tokens."""
        if self._in_step:
            raise ValueError(
                "a step of this state was interrupted, by an error or by Ctrl-C, so that its cache and its texts may "
                "disagree, and it cannot go on: call start again; state.emitted() has what was emitted so far"
            )

    def idle_error(self) -> ValueError:
        """Return why no request is in flight after those that wait were offered the rows; the state stands."""
        self._in_step = False  # nothing was touched yet: the step may be asked for again
        if not self.slots.waiting:
            return ValueError("state has no work left; add a request, or call finish(state) for the result")
        return ValueError(
            "no request of this run finds the pages that it needs, for another run of this decoder has them: finish "
            "that one first, or raise max_cache_bytes"
        )

    def emitted(self) -> list[list[int]]:
        """Return the new ids of each request so far: of those that ended, and of those in flight.

        Guarantee: the ids of an interrupted step are there for all of its rows or for none; either way it is the
            beginning of the output that an uninterrupted run writes.
        """
        found = [list(output) for output in self.outputs[: len(self.slots.requests)]]
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
                np.array([_longest_draft(r) for r in asked], dtype=np.int64),
                np.flatnonzero([bool(r.stop_strings or r.stop_ids or r.grammar) for r in asked]),
            )
        return self._seated


def _longest_draft(request: Request) -> int:
    return _LONGEST if request.max_draft_tokens is None else min(_LONGEST, request.max_draft_tokens)


class Frame(NamedTuple):
    """One step's rows, and what the source, the rule and the draws are told of them.

    Attributes:
        seated: the rows, and what does not change while they are in flight.
        num_committed: ``[B]`` their ids that stand.
        pending: ``[B]`` their last ids.
        shortened: ``[B]`` whether the end of the text bounds the draft.
        context: what the source reads of these rows: its arrays are copies, which it may write to.
        warping, budget, randomness: of these rows.
        return_logprobs: whether log-probabilities are asked for.
        uploads: what goes to a device with the step's copies, and stays there until the step ends.
    """

    seated: SeatedRows
    num_committed: IntArray
    pending: IntArray
    shortened: BoolArray
    context: Context
    warping: BatchWarping
    budget: Budget
    randomness: Randomness
    return_logprobs: bool
    uploads: list[StagedValues]
