"""Requests that join a running state and are taken out of it: what each writes is what it writes alone."""

import threading
from typing import Any

import numpy as np
import pytest

import drafts
from specdec import SamplingParams, SharedBudget, SpeculativeDecoder
from specdec.contracts import WatchedSession, WatchedSource
from specdec.engine import decoder as engine_decoder
from specdec.engine import state as engine_state
from tests.reference.tables import random_table
from tests.support.drafting.sources import RandomTrees
from tests.support.models.counting import Counting, counts, guessing
from tests.support.models.tiny_models import rough_view, tiny_transformer
from tests.support.runs.hand_clock import clock_of

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.8, min_new_tokens=3),
    SamplingParams(temperature=1.2, frequency_penalty=0.5, logit_bias={1: 1.0}),
]
SOURCES = {
    "lookup": lambda: drafts.PromptLookup(3),
    "model": lambda: drafts.SmallTransformer(rough_view(), 3),
    "trees": lambda: RandomTrees(random_table(4, 2, 5)),
}


def requests_of(decoder: SpeculativeDecoder, random: np.random.Generator, count: int) -> list[Any]:
    made = []
    for number in range(count):
        prompt = [3, 1, 2] * 7 + random.integers(4, size=random.integers(1, 6)).tolist()  # two pages in common
        sampling, longest = SAMPLINGS[random.integers(4)], [None, 0, 1, 2][random.integers(4)]
        stop = [[2, 2]] if random.random() < 0.3 else None
        asked = prompt, int(random.integers(1, 20)), sampling, (7, number), stop
        made.append((asked, decoder.request(*asked, max_draft_tokens=longest)))
    return made


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_whenever_requests_come_and_go_each_writes_what_it_writes_alone(name, sharing):
    oracle, random = tiny_transformer(), np.random.default_rng(len(name))
    decoder = SpeculativeDecoder(oracle, SOURCES[name](), "coupled", prefix_sharing=sharing)
    state, made = decoder.start([], batch_size=3, max_length=60), requests_of(decoder, random, 14)
    to_come, cancelled = list(range(len(made))), set()
    while to_come or state.has_work:
        while to_come and random.random() < 0.5:
            assert state.add(made[to_come[0]][1]) == to_come.pop(0)
        if len(state.outputs) and random.random() < 0.15:
            request = int(random.integers(len(state.outputs)))
            cancelled |= {request}
            before = state.emitted()
            state.cancel(request)
            assert state.emitted() == before
        if state.has_work:
            _, info = decoder.step(state)
            for request, drafted in zip(info.requests.tolist(), info.draft_depth.tolist(), strict=True):
                longest = made[request][1].max_draft_tokens
                assert longest is None or drafted <= longest
    result, plain = decoder.finish(state), SpeculativeDecoder(oracle, None, "coupled")
    reasons = [*result.finish_reasons]
    assert {i for i, reason in enumerate(reasons) if reason == "cancelled"} < cancelled
    assert "cancelled" in reasons
    for ((prompt, new, sampling, seed, stop), _), tokens, reason in zip(made, result.tokens, reasons, strict=True):
        alone = plain.generate([prompt], new, sampling, [seed], stop)
        if reason == "cancelled":
            assert tokens == alone.tokens[0][: len(tokens)]
        else:
            assert (tokens, reason) == (alone.tokens[0], alone.finish_reasons[0])
    if sharing:
        pool = decoder._sharing._memory._memory.pool
        assert not pool.uses.any(), "every page came back"


def test_a_cancelled_request_leaves_its_row_or_the_queue_and_an_ended_one_stays():
    decoder = SpeculativeDecoder(Counting(), guessing(2))
    state = decoder.start([[1], [2], [3], [4]], 12, batch_size=2)
    decoder.step(state)
    state.cancel(0)
    state.cancel(2)
    _, info = decoder.step(state)
    assert info.requests.tolist() == [3, 1]
    while state.has_work:
        decoder.step(state)
    for request in (0, 1, 2):
        state.cancel(request)
    result = decoder.finish(state)
    assert result.tokens == [counts(2, 3), counts(3, 12), [], counts(5, 12)]
    assert result.finish_reasons == ["cancelled", "length", "cancelled", "length"]
    with pytest.raises(ValueError, match="request 4 is none of this run: it has 4 requests"):
        state.cancel(4)


def test_a_request_without_drafts_is_no_shortened_one():
    decoder = SpeculativeDecoder(Counting(), guessing(4))
    state = decoder.start([], batch_size=2, max_length=20)
    for longest in (0, 2):
        state.add(decoder.request([1], 12, max_draft_tokens=longest))
    while state.has_work:
        decoder.step(state)
    result = decoder.finish(state)
    columns = result.records.columns()
    drafted = [[d for r, d in zip(columns["request"], columns["num_drafted"], strict=True) if r == i] for i in (0, 1)]
    assert drafted == [[0] * 12, [2] * 4]
    assert not any(columns["shortened"][:-1])
    assert result.tokens == [counts(2, 12)] * 2


@pytest.mark.parametrize(
    ("start", "request_of", "told"),
    [
        ({}, {}, "this state has no rows: give start a batch_size and a max_length"),
        ({"batch_size": 2}, {}, "this state has no rows"),
        ({"max_length": 9}, {}, "max_length=9: give batch_size too"),
        ({"batch_size": 2, "max_length": 0}, {}, "max_length must be an integer, 1 or more, not 0"),
        ({"batch_size": 1, "max_length": 9}, {"max_new_tokens": 9}, "request 0 may have 10 ids, .* room for 9: give"),
        ({"batch_size": 1, "max_length": 9}, {"max_draft_tokens": -1}, "max_draft_tokens must be an integer, 0 or"),
        ({"batch_size": 1, "max_length": 9}, {"prompt": [[1], [2]]}, r"prompts\[0\]"),
    ],
)
def test_what_cannot_be_added_is_refused(start, request_of, told):
    decoder = SpeculativeDecoder(Counting())
    with pytest.raises(ValueError, match=told):
        decoder.start([], **start).add(decoder.request(**{"prompt": [1], "max_new_tokens": 5, **request_of}))


def test_a_request_that_its_pages_can_never_hold_is_refused_and_the_state_goes_on():
    oracle = tiny_transformer()
    decoder = SpeculativeDecoder(oracle, prefix_sharing=True, max_cache_bytes=2 * oracle.page_bytes)
    state = decoder.start([[1]], 5, batch_size=1, max_length=60)
    with pytest.raises(ValueError, match="request 1 may fill 3 pages of 16 slots, and max_cache_bytes"):
        state.add(decoder.request([1], 40))
    while state.has_work:
        decoder.step(state)
    assert decoder.finish(state).tokens == SpeculativeDecoder(oracle).generate([[1]], 5).tokens


def test_time_to_first_token_counts_from_when_a_request_was_added():
    with clock_of(engine_decoder, engine_state) as clock:
        decoder = SpeculativeDecoder(Counting(), WatchedSource(guessing(1), lambda session, *_: Slow(session, clock)))
        state = decoder.start([[1]], 4, batch_size=2, max_length=9)
        decoder.step(state)
        clock.spend(10.0)
        state.add(decoder.request([2], 2))
        while state.has_work:
            decoder.step(state)
        state.started = clock.now - state.started
        stats = state.recorder.finish(100.0)
    assert [one.first_token_seconds for one in stats.requests] == [1.0, 1.0]


class Slow(WatchedSession):
    def __init__(self, inner, clock):
        super().__init__(inner)
        self.clock = clock

    def propose(self, *told):
        self.clock.spend(1.0)
        return self.inner.propose(*told)


def test_another_thread_may_add_during_a_step_and_may_not_cancel():
    inside, added = threading.Event(), threading.Event()

    class Waits(WatchedSession):
        def propose(self, *told):
            inside.set()
            assert added.wait(10)
            return self.inner.propose(*told)

    decoder = SpeculativeDecoder(Counting(), WatchedSource(guessing(2), lambda session, *_: Waits(session)))
    state = decoder.start([[1]], 3, batch_size=2, max_length=9)
    worker = threading.Thread(target=lambda: decoder.step(state))
    worker.start()
    assert inside.wait(10)
    assert state.add(decoder.request([2], 3)) == 1
    with pytest.raises(RuntimeError, match="another thread is in the middle of a step"):
        state.cancel(0)
    added.set()
    worker.join()
    while state.has_work:
        decoder.step(state)
    assert decoder.finish(state).tokens == [counts(2, 3), counts(3, 3)]


@pytest.mark.parametrize("budget", [None, SharedBudget(3)])
def test_what_a_source_writes_into_its_arrays_changes_no_output(budget):
    class Writes(WatchedSession):
        """Write into each array of a call, after the call."""

        def begin(self, rows, prompts, scores):
            self.inner.begin(rows, prompts, scores)
            spoil(rows, *prompts)

        def propose(self, rows, context, limits, randomness):
            draft = self.inner.propose(rows, context, limits, randomness)
            spoil(rows, context.ids, context.num_committed, limits.max_depth, limits.max_nodes)
            return draft

        def sync(self, rows, keep, new_ids, scores):
            self.inner.sync(rows, keep, new_ids, scores)
            spoil(rows, keep, new_ids)

        def end(self, rows):
            self.inner.end(rows)
            spoil(rows)

    def spoil(*arrays):
        for array in arrays:
            array[:] = 1

    source = WatchedSource(guessing(3, num_right=2), lambda session, *_: Writes(session))
    for draft, rule in {
        source: "standard",
        drafts.Merged([source, guessing(2)]): "multi_draft",
        drafts.Cascade([source, guessing(2)]): "standard",
        drafts.Staged(Counting(), source, 3): "standard",
    }.items():
        decoder = SpeculativeDecoder(Counting(), draft, rule, budget=budget)
        result, clean = (
            one.generate([[1], [2, 3], [4]], 9, batch_size=2) for one in (decoder, SpeculativeDecoder(Counting()))
        )
        assert result.tokens == clean.tokens
        assert result.stats.num_steps < clean.stats.num_steps, "drafts are accepted as if nothing was written"
