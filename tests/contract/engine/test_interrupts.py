"""Ctrl-C at any line of a step: the run goes on with the same tokens, or says that it cannot."""

import inspect
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import drafts
import specdec
from specdec import SamplingParams, SpeculativeDecoder
from specdec.cache import PAGE, PagedCache, PagedKVCache, PagePool
from specdec.cache.paged_cache import TensorMemory
from tests.support.models.tiny_models import tiny_transformer
from tests.support.registry import SIX_IDS

FOLDERS = tuple(str(Path(package.__file__).parent) for package in (specdec, drafts))
# Here every line is a place to stop at, elsewhere one of so many.
BOOKS = tuple(str(Path(FOLDERS[0]) / name) for name in ("engine/decoder.py", "engine/slots.py", "engine/state.py"))
OTHER_LINES = 9
PROMPTS = [[1, 2, 3], [4, 1], [0, 5, 2]]
SAMPLED = SamplingParams(temperature=1.0)
PAGES = tiny_transformer(6, max_context=128)
CASES = {
    "plain": (None, "standard", SamplingParams()),
    "a model": (drafts.SmallTransformer(SIX_IDS.model, 3), "standard", SAMPLED),
    "trees": (drafts.Lookahead(), "coupled", SAMPLED),
}
Line = tuple[str, int]


def count_lines(visit: Callable[[Line], None]) -> None:
    """Have every line that runs in our folders from now on be told, until ``sys.settrace(None)``."""

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            visit((frame.f_code.co_filename, frame.f_lineno))
        return local

    def begun(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(FOLDERS) else None

    sys.settrace(begun)


def start(decoder: SpeculativeDecoder, sampling: SamplingParams) -> specdec.State:
    return decoder.start(PROMPTS, 5, sampling, batch_size=2)


def places(decoder: SpeculativeDecoder, sampling: SamplingParams) -> list[tuple[int, int]]:
    """Return where a run is stopped, as a step and a line in it: at each chosen line in the middle of its visits."""
    visits: dict[Line, list[tuple[int, int]]] = defaultdict(list)
    state, step = start(decoder, sampling), 0
    while state.has_work:
        lines: list[Line] = []
        count_lines(lines.append)
        try:
            decoder.step(state)
        finally:
            sys.settrace(None)
        for number, line in enumerate(lines):
            visits[line].append((step, number))
        step += 1
    others = [line for line in visits if not line[0].startswith(BOOKS)]
    chosen = [line for line in visits if line[0].startswith(BOOKS)] + others[::OTHER_LINES]
    return [visits[line][len(visits[line]) // 2] for line in chosen]


def stops_at(number: int, act: Callable[[], object], but: str = "no file") -> bool:
    """Act, and press Ctrl-C at a line of ours, ``but`` in no file of this name; tell whether there are so many."""
    left = [number]

    def visit(line: Line) -> None:
        if line[0].endswith(but):
            return
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1

    count_lines(visit)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def interrupt(decoder: SpeculativeDecoder, state: specdec.State, step: int, number: int) -> None:
    """Take so many steps, and stop at a line of the next one."""
    for _ in range(step):
        decoder.step(state)
    assert stops_at(number, partial(decoder.step, state)), "the step ended before"


def ends(decoder: SpeculativeDecoder, state: specdec.State, wanted: list[list[int]]) -> bool:
    """Tell whether a run goes on to the tokens that are wanted; False if it says that it cannot go on."""
    try:
        while state.has_work:
            decoder.step(state)
        assert decoder.finish(state).tokens == wanted
    except ValueError as error:
        if "step of this state was interrupted" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_step_goes_on_with_the_same_tokens_or_says_that_it_cannot(case: str) -> None:
    source, rule, sampling = CASES[case]
    decoder = SpeculativeDecoder(SIX_IDS.other, source, rule)
    wanted = decoder.generate(PROMPTS, 5, sampling, batch_size=2).tokens
    refused, chosen = 0, places(decoder, sampling)
    for place in chosen:
        state = start(decoder, sampling)
        interrupt(decoder, state, *place)
        assert not state.seating.turn, "other threads may take steps"
        assert all(whole[: len(ids)] == ids for ids, whole in zip(state.emitted(), wanted, strict=True))
        refused += not ends(decoder, state, wanted)
    assert len(chosen) > 60
    assert len(chosen) / 2 < refused < len(chosen)
    assert decoder.generate(PROMPTS, 5, sampling, batch_size=2).tokens == wanted


def test_an_interrupted_add_leaves_nothing_or_the_request() -> None:
    decoder = SpeculativeDecoder(SIX_IDS.other, None, "coupled")
    samplings = [SAMPLED, SamplingParams(temperature=0.5), SamplingParams()]
    alone = [decoder.generate([[n]], 6, samplings[n], [(7, n)]).tokens[0] for n in range(3)]
    requests = [decoder.request([n], 6, samplings[n], (7, n)) for n in range(3)]
    for number in itertools.count():
        state = decoder.start([], batch_size=2, max_length=20)
        state.add(requests[0])
        stopped = stops_at(number, partial(state.add, requests[1]))
        state.add(requests[2])
        while state.has_work:
            decoder.step(state)
        result = decoder.finish(state)
        assert result.tokens in ([alone[0], alone[2]], alone), number
        assert len(result.finish_reasons) == len(result.stats.requests) == len(result.tokens)
        if not stopped:
            break
    assert number > 50
    assert result.tokens == alone


@pytest.mark.parametrize("request_", [0, 2], ids=["in flight", "waiting"])
def test_an_interrupted_cancel_leaves_the_run_as_it_was_or_ends_it_without_its_pages(request_: int) -> None:
    decoder = SpeculativeDecoder(PAGES, drafts.PromptLookup(2), prefix_sharing=True)
    prompts = [[1] * 20, [2] * 20, [3]]
    wanted = decoder.generate(prompts, 5, batch_size=2).tokens
    for number in itertools.count():
        state = decoder.start(prompts, 5, batch_size=2)
        decoder.step(state)
        # Between the last lines of the pool nothing is called, so that no Ctrl-C comes there.
        stopped = stops_at(number, partial(state.cancel, request_), but="page_pool.py")
        assert not state.seating.turn, "other threads may take steps"
        cancelled = state.finish_reasons[request_] == "cancelled"
        whole = [
            *wanted[:request_],
            state.emitted()[request_] if cancelled else wanted[request_],
            *wanted[request_ + 1 :],
        ]
        assert whole[request_] == wanted[request_][: len(whole[request_])]
        goes_on = ends(decoder, state, whole)
        pool = state.seating.cache.memory.pool
        assert not pool.uses.any(), number
        if not stopped:
            break
    assert number > 10
    assert goes_on
    assert cancelled


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a finalizer swallows it
def test_a_start_that_is_interrupted_lets_other_threads_in() -> None:
    number, ended = 0, 0
    while ended < 9:  # more lines than a finalizer has
        decoder = SpeculativeDecoder(PAGES, drafts.SmallTransformer(PAGES, 2), prefix_sharing=True)
        turn = decoder.start(PROMPTS[:1], 5).seating.turn
        ended += not stops_at(number, partial(decoder.start, PROMPTS[:1], 5))
        assert not turn, number
        number += 1
    assert number > 300


def test_a_state_whose_step_failed_neither_steps_nor_finishes_and_tells_what_was_emitted() -> None:
    decoder = SpeculativeDecoder(SIX_IDS.other, drafts.PromptLookup(3))
    state = start(decoder, SamplingParams())
    state, _ = decoder.step(state)
    before = state.emitted()
    assert [len(ids) > 0 for ids in before] == [True, True, False]
    verify, decoder._verify = decoder._verify, None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        decoder.step(state)
    decoder._verify = verify
    assert state.emitted() == before
    for go_on in (decoder.step, decoder.finish):
        with pytest.raises(ValueError, match=r"was interrupted.*call start again; state\.emitted\(\) has what"):
            go_on(state)


def stops_at_call(number: int, act: Callable[[], object]) -> bool:
    """Act, and press Ctrl-C at a call or an answer in the books of pages; tell whether there are so many.

    Python raises Ctrl-C there and at jumps, and ``sys.setprofile`` tells of them.
    """
    left = [number]

    def press(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename in (inspect.getfile(PagePool), inspect.getfile(PagedCache)):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt

    sys.setprofile(press)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a finalizer would swallow it
def test_pages_of_caches_that_are_gone_or_given_up_come_back_once_wherever_that_is_stopped() -> None:
    def forget(caches: list[PagedKVCache], pool: PagePool) -> None:
        caches.pop()
        assert pool.num_free >= 0

    def give_up(caches: list[PagedKVCache], pool: PagePool) -> None:
        caches[0].give_up()

    for act in (forget, give_up):
        number, stopped = 0, True
        while stopped:
            memory = TensorMemory((1,), (1,), 8, torch.float32, torch.device("cpu"), 0)
            caches = [PagedKVCache(memory, 2, 3 * PAGE)]
            caches[0].seat(1, caches[0].pages[0, :1].astype(np.int64), 3 * PAGE)
            stopped = stops_at_call(number, partial(act, caches, memory.pool))
            for cache in caches:
                cache.give_up()
            caches.clear()
            assert memory.pool.num_free == 8, (act, number)
            assert memory.pool.uses.tolist() == 8 * [0], (act, number)
            number += 1
        assert number > 6


def test_every_page_can_be_taken_wherever_a_text_is_forgotten() -> None:
    number, stopped, ids = 0, True, np.arange(4 * PAGE)
    while stopped:
        pool = PagePool(4)
        pool.keep(ids, np.arange(4))
        stopped = stops_at_call(number, partial(pool.take, 3))
        assert sorted(pool.take(4).tolist()) == [0, 1, 2, 3], number
        assert pool.find(ids).tolist() == [], number
        number += 1
    assert number > 12


@pytest.mark.parametrize("action", ["vacate", "seat"])
def test_pages_go_back_once_wherever_a_row_is_left_or_taken(action: str) -> None:
    number, stopped = 0, True
    while stopped:
        memory = TensorMemory((1,), (1,), 8, torch.float32, torch.device("cpu"), 0)
        cache = PagedKVCache(memory, 2, 3 * PAGE)
        given = (np.array([0]),) if action == "vacate" else (0, cache.pages[1, :1].astype(np.int64), 3 * PAGE)
        stopped = stops_at_call(number, partial(getattr(cache, action), *given))
        del cache
        assert memory.pool.num_free == memory.pool.num_pages, number
        assert memory.pool.uses.min() >= 0, number
        number += 1
    assert number > 8


def test_pages_go_back_if_ctrl_c_comes_while_they_are_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    def press(memory: TensorMemory, pages: Any) -> None:
        raise KeyboardInterrupt

    memory = TensorMemory((1,), (1,), 4, torch.float32, torch.device("cpu"), 0)
    memory.pool.is_dirty[:] = True
    cache = PagedKVCache(memory, 2, 2 * PAGE, is_seated=False)
    monkeypatch.setattr(TensorMemory, "clear", press)
    with pytest.raises(KeyboardInterrupt):
        cache.seat(0, np.zeros(0, dtype=np.int64), 2 * PAGE)
    cache.give_up()
    assert memory.pool.num_free == 4
    assert memory.pool.is_dirty.all(), "what was not cleared is cleared for the next row"
