"""Prompts that begin alike: what is known of them changes nothing but the work, with every source."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from threading import Event, Lock, current_thread, main_thread
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import drafts
from oracles import HuggingFaceLM, RecordedText, TabularLM
from oracles.graphed import GraphedTransformer
from oracles.native import NativeTransformer
from specdec import Kary, SamplingParams, SpeculativeDecoder
from specdec.cache import prefill
from specdec.cache.prefix_memory import KnownRows
from specdec.contracts import OracleDefaults
from specdec.drafting import model as draft_model
from specdec.engine.seating import INSIDE, Turn
from tests.support.models.eagle3_heads import tiny_eagle3
from tests.support.models.tiny_models import rough_view, tiny_transformer
from tests.support.pairwise import chosen
from tests.support.registry import OTHERS, SIX_IDS, WAYS


def models_of(dtype: torch.dtype, **options):
    """Return models all of which read pages: what drafts has two layers, the oracle three."""
    deep, flat = (options | {"num_layers": layers, "max_context": 128} for layers in (3, 2))
    return replace(
        SIX_IDS,
        model=tiny_transformer(6, dtype, 1, **flat),
        other=tiny_transformer(6, dtype, 2, **flat),
        layered=tiny_transformer(6, dtype, **deep),
        view=rough_view(6, dtype, **deep),
    )


SHAPE = {"num_layers": 3, "max_context": 128}
EAGER, NATIVE = models_of(torch.float64), models_of(torch.float32, pack=NativeTransformer)
WARM = SamplingParams(temperature=0.9)
TEXT = np.random.default_rng(5).integers(0, 6, 200).tolist()
# The second and the third begin with two pages of the first, the fourth is the first, and the last is short.
PROMPTS = [TEXT[:50], [*TEXT[:41], 1], TEXT[:33], TEXT[:50], TEXT[60:70]]
OTHER_TEXTS = [TEXT[70 + i : 130 + i] for i in range(4)]


def pair(oracle, make, num_pages: int | None = None):
    """Return a decoder that shares beginnings, in a memory of so many pages, and one that does not."""
    limit = None if num_pages is None else (num_pages + 1) * oracle.page_bytes
    shared = SpeculativeDecoder(oracle, make(), "multi_draft", prefix_sharing=True, max_cache_bytes=limit)
    return shared, SpeculativeDecoder(oracle, make(), "multi_draft")


def run_one(decoder, prompts, seed: int, batch_size: int | None = None):
    return decoder.generate(prompts, 9, WARM, seed=seed, batch_size=batch_size, return_logprobs=True)


def run_both(decoders, *given):
    """Return the statistics of a run that shares, after comparing it with one that does not."""
    shared, alone = (run_one(decoder, *given) for decoder in decoders)
    assert_same(shared, alone, decoders[0].oracle.bitwise)
    return shared.stats


def assert_same(shared, alone, is_bitwise: bool):
    assert shared.tokens == alone.tokens
    for mine, theirs in zip(shared.logprobs, alone.logprobs, strict=True):
        assert mine == (theirs if is_bitwise else pytest.approx(theirs, abs=1e-9))
    assert drafted(shared) == drafted(alone)


def drafted(result):
    """Return how many nodes each request was drafted, step after step, by whom, and which were accepted."""
    steps = [[] for _ in result.tokens]
    for row in result.records:
        steps[row["request"]].append((row["node_sources"], row["draft_depth"], row["path_sources"], row["ranks"]))
    return steps


EAGER_TOO = ("PromptLookup", "SmallTransformer", "EarlyExit", "Quantized", "Eagle3", "Lookahead")


def meetings(way, backend):
    name = way.partition(": ")[0]
    return {(name, name in EAGER_TOO and backend), name in OTHERS and way}


# What is drafted is not known to pages: the quick part has each kind of source, few with both backends, and every way
# of those that are no chains.
@chosen({"make": WAYS, "models": {"native": NATIVE, "eager": EAGER}}, meetings)  # first what is fast
def test_a_hit_is_a_miss_and_so_is_what_comes_after_eviction(make, models):
    shared, alone = pair(models.layered, lambda: make(models), num_pages=16)
    reads_prompts, found = shared.draft.needs.reads_prompts, []
    texts = (PROMPTS, PROMPTS, OTHER_TEXTS)
    plain = [run_one(alone, prompts, seed, 3) for seed, prompts in enumerate(texts)]
    for seed in (0, 1, 2, 0):
        made = run_one(shared, texts[seed], seed, 3)
        assert_same(made, plain[seed], models.layered.bitwise)
        found.append(made.stats)
    first, again, evicting, after = found
    assert max(stats.most_pages for stats in (first, again, evicting, after)) <= 16
    if reads_prompts:
        assert first.num_prefix_tokens == again.num_prefix_tokens == 0
    else:
        assert 2 * 32 + 48 <= first.num_prefix_tokens <= again.num_prefix_tokens
        assert evicting.num_evicted_pages > 0
        assert after.num_prefix_tokens < again.num_prefix_tokens or after.num_evicted_pages


def test_samples_of_one_prompt_store_it_once():
    decoders = pair(NATIVE.layered, lambda: drafts.PromptLookup(3))
    stats = run_both(decoders, [TEXT[:81]] * 6, 0)
    assert stats.num_prefix_tokens == 5 * 80
    # Six rows of 81 + 9 + 4 slots: five pages are common to them, and one is each row's own.
    assert stats.most_pages == 5 + 6
    assert stats.prefill_calls == 1


def test_the_figures_of_a_run_are_its_own_while_another_one_is_under_way():
    """A text of 50 ids has four pages, each of the others five; all of these and what is kept of them are too many."""
    shared, _ = pair(NATIVE.layered, lambda: drafts.PromptLookup(3), num_pages=16)
    state, _ = shared.step(shared.start([TEXT[:50]], 9, WARM))
    within = shared.generate(OTHER_TEXTS, 9, WARM, batch_size=1).stats
    while state.has_work:
        state, _ = shared.step(state)
    around = shared.finish(state).stats
    assert within.num_evicted_pages > 0
    assert (around.num_evicted_pages, around.most_pages, within.most_pages) == (0, 4, 4 + 5)


@pytest.mark.parametrize(("size", "known"), [(39, 32), (40, 48)])
def test_the_second_turn_of_a_conversation_reads_what_is_new(size, known):
    """The last token of an answer has no keys: 48 ids fill two pages."""
    shared, alone = decoders = pair(NATIVE.layered, lambda: drafts.PromptLookup(3))
    said = alone.generate([TEXT[:size]], 9, WARM).tokens[0]
    assert shared.generate([TEXT[:size]], 9, WARM).tokens[0] == said
    second = TEXT[:size] + said + TEXT[40:50]
    assert run_both(decoders, [second], 1).num_prefix_tokens == known
    assert run_both(decoders, [second], 2).num_prefix_tokens == (len(second) - 1) // 16 * 16


def read_by_drafts(monkeypatch):
    """Return a list that will hold how many ids of prompts each prefill of a draft model reads."""
    counts = []

    def watch(model, cache, rows, prompts, needs=None):
        counts.append(sum(len(prompt) - 1 for prompt in prompts) - int(cache.lengths[rows].sum()))
        return prefill(model, cache, rows, prompts, needs)

    monkeypatch.setattr(draft_model, "prefill", watch)
    return counts


DRAFTS = {
    "chains": lambda models: drafts.SmallTransformer(models.model, 3),
    "trees": lambda models: drafts.SmallTransformer(models.model, tree=Kary(2, 2)),
    "staged": lambda models: drafts.Staged(models.model, drafts.PromptLookup(2), 4),
    "merged": lambda models: drafts.Merged([drafts.SmallTransformer(models.model, 3), drafts.PromptLookup(3)]),
}


@pytest.mark.parametrize("make", DRAFTS.values(), ids=DRAFTS)
def test_a_draft_model_reads_of_a_prompt_what_is_new(make, monkeypatch):
    shared, _ = decoders = pair(NATIVE.layered, lambda: make(NATIVE))
    counts = read_by_drafts(monkeypatch)
    shared.generate([TEXT[:81]] * 3, 9, WARM)
    assert counts == [80, 0]
    second = TEXT[:81] + shared.generate([TEXT[:81]], 9, WARM).tokens[0] + TEXT[90:110]
    stats = run_both(decoders, [second] * 2, 1)
    assert stats.num_draft_prefix_tokens == stats.num_prefix_tokens == 80 + 96
    counts.clear()
    for first in range(0, 90, 9):
        shared.generate([TEXT[first + 1 : first + 100]] * 2, 9, WARM)
    assert counts == [98, 2] * 10, "no two texts begin alike"
    evicted = run_both(decoders, [second] * 2, 2)
    assert evicted.num_draft_prefix_tokens < evicted.num_prefix_tokens + 96


@pytest.mark.parametrize("name", ["chains", "trees", "staged"])
def test_a_draft_model_knows_what_was_written_in_its_rows(name):
    decoders = pair(NATIVE.layered, lambda: DRAFTS[name](NATIVE))
    first = TEXT[:41] + decoders[0].generate([TEXT[:41]], 28, WARM).tokens[0]
    assert run_both(decoders, [first + TEXT[90:95]], 1).num_draft_prefix_tokens == 64


def test_models_inside_one_another_share_what_each_has_read():
    inner = drafts.SmallTransformer(NATIVE.other, 2)
    decoders = pair(NATIVE.layered, lambda: drafts.Staged(NATIVE.model, inner, 4))
    assert run_both(decoders, [TEXT[:81]] * 2, 0).num_draft_prefix_tokens == 2 * 80
    twice = pair(NATIVE.layered, lambda: drafts.Merged([inner, drafts.SmallTransformer(NATIVE.other, 1)]))
    assert run_both(twice, [TEXT[:81]], 0).num_draft_prefix_tokens == 80, "one has read it for the other"


def test_a_head_reads_each_prompt_by_itself(monkeypatch):
    oracle = EAGER.layered
    head = tiny_eagle3(oracle)
    monkeypatch.setattr(type(head), "prefix_key", ("mine",), raising=False)
    decoders = pair(oracle, lambda: drafts.Eagle3(head, 3))
    for seed in range(2):
        assert run_both(decoders, PROMPTS, seed).num_draft_prefix_tokens == 0


def test_keys_of_another_text_change_drafts(monkeypatch):
    decoders = pair(NATIVE.layered, lambda: drafts.SmallTransformer(NATIVE.model, 3))
    run_both(decoders, [TEXT[:81]], 0)
    original = KnownRows.begin
    monkeypatch.setattr(KnownRows, "begin", lambda self, rows, texts: original(self, rows, [np.array(TEXT[:80])]))
    with pytest.raises(AssertionError):
        run_both(decoders, [TEXT[90:190]], 1)


def test_runs_at_a_time_have_rows_of_the_draft_model_each():
    shared, alone = pair(NATIVE.layered, lambda: drafts.SmallTransformer(NATIVE.model, 3))
    states = [shared.start([TEXT[10 * i : 10 * i + 80]] * 2, 9, WARM, seed=i) for i in range(5)]
    while any(state.has_work for state in states):
        for state in states:
            if state.has_work:
                shared.step(state)
    for i, state in enumerate(states):
        assert shared.finish(state).tokens == alone.generate([TEXT[10 * i : 10 * i + 80]] * 2, 9, WARM, seed=i).tokens


def test_the_pending_token_of_a_prompt_is_not_known():
    decoders = pair(NATIVE.layered, lambda: drafts.PromptLookup(3))
    assert run_both(decoders, [TEXT[:48], TEXT[:49], TEXT[:60]], 0, 3).num_prefix_tokens == 32 + 48


def test_a_memory_grows_with_the_runs_and_keeps_what_it_knows():
    decoders = pair(EAGER.layered, lambda: drafts.PromptLookup(3))
    run_both(decoders, [TEXT[:20]], 0)
    run_both(decoders, [TEXT[:20], *OTHER_TEXTS], 1)
    assert run_both(decoders, [TEXT[:20], *OTHER_TEXTS], 2).num_prefix_tokens == 16 + 4 * 48


@pytest.mark.parametrize("make", [lambda models: None, *DRAFTS.values()], ids=["plain", *DRAFTS])
@pytest.mark.parametrize("models", [EAGER, NATIVE], ids=["eager", "native"])
def test_a_row_that_holds_much_is_not_padded_beyond_its_room(make, models):
    """Beside 100 known ids stand 16 slots for 2 more tokens, and the other prompt has 90 ids to be read."""
    shared, alone = (
        SpeculativeDecoder(models.layered, make(models), "coupled", prefix_sharing=s) for s in (True, False)
    )
    shared.generate([TEXT[:100]], 2)
    prompts = [TEXT[:101], TEXT[100:190], TEXT[:99]]
    result = shared.generate(prompts, 2, WARM)
    assert result.tokens == alone.generate(prompts, 2, WARM).tokens
    assert result.stats.num_prefix_tokens == 96 + 96
    assert result.stats.prefill_calls == 2


def test_other_weights_are_not_taken_for_the_same():
    model = tiny_transformer(6, **SHAPE)
    decoders = pair(model, lambda: drafts.PromptLookup(3))
    run_both(decoders, PROMPTS, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    assert run_both(decoders, PROMPTS[:1], 0).num_prefix_tokens == 0
    for parameter in model.parameters():
        parameter.data = 0.8 * parameter.data
    assert run_both(decoders, PROMPTS[:1], 0).num_prefix_tokens == 0


@pytest.mark.parametrize("models", [EAGER, NATIVE], ids=["eager", "native"])
def test_a_memory_outlives_the_inference_mode_of_the_run_that_made_it(models):
    decoders = pair(models.layered, lambda: drafts.SmallTransformer(models.model, 2), num_pages=9)
    with torch.inference_mode():
        run_both(decoders, [TEXT[:50]], 0)
    assert run_both(decoders, [TEXT[:50]], 1).num_prefix_tokens == 48
    run_both(decoders, [TEXT[60:170]], 2)


def test_a_run_that_is_given_up_leaves_its_pages():
    oracle = EAGER.layered
    decoder = SpeculativeDecoder(oracle, prefix_sharing=True, max_cache_bytes=9 * oracle.page_bytes)
    for _ in range(4):
        state = decoder.start([TEXT[:100]], 9)
        state, _ = decoder.step(state)
        del state
    assert len(decoder.generate([TEXT[:100]], 9).tokens[0]) == 9
    # So does one whose step fails, while its state and its error are still held.
    verify, decoder._verify = decoder._verify, None
    held = decoder.start([TEXT[:100]], 9)
    with pytest.raises(AttributeError) as error:
        decoder.step(held)
    decoder._verify = verify
    for _ in range(2):
        with pytest.raises(ValueError, match="was interrupted"):
            decoder.step(held)
        assert len(decoder.generate([TEXT[50:150]], 9).tokens[0]) == 9
    assert error.value is not None


def test_a_step_within_a_step_is_refused_and_takes_no_page_from_the_outer_one(monkeypatch):
    oracle, sampling = EAGER.layered, SamplingParams(temperature=1.0)
    decoder = SpeculativeDecoder(
        oracle, drafts.PromptLookup(2), "coupled", prefix_sharing=True, max_cache_bytes=11 * oracle.page_bytes
    )
    state, refused = decoder.start([TEXT[:90]], 38, sampling), []
    propose = state.session.propose

    def step_within(*given):
        with pytest.raises(ValueError, match="was interrupted"):
            decoder.step(state)
        refused.append(given)
        return propose(*given)

    monkeypatch.setattr(state.session, "propose", step_within)
    while state.has_work:
        decoder.step(state)
        with pytest.raises(ValueError, match="finds the pages that it needs") if state.has_work else nullcontext():
            decoder.generate([TEXT[37:120]], 8)
    assert refused
    assert decoder.finish(state).tokens == SpeculativeDecoder(oracle, None, "coupled").generate(
        [TEXT[:90]], 38, sampling
    ).tokens  # fmt: skip
    # Ctrl-C while pages are given up keeps nobody out.
    state = decoder.start([TEXT[:90]], 38, sampling)
    monkeypatch.setattr(decoder, "_verify", None)
    monkeypatch.setattr(state.seating, "give_up", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        decoder.step(state)
    assert not state.seating.turn


def test_runs_at_a_time_share_a_memory_and_one_without_pages_says_so():
    oracle = EAGER.layered
    decoder = SpeculativeDecoder(oracle, prefix_sharing=True, max_cache_bytes=13 * oracle.page_bytes)
    one, other = decoder.start([TEXT[:80]], 9), decoder.start([TEXT[:80]], 9)
    while one.has_work or other.has_work:
        for state in (one, other):
            if state.has_work:
                decoder.step(state)
    assert decoder.finish(one).tokens == decoder.finish(other).tokens
    held = decoder.start([TEXT[:110]], 9)
    decoder.step(held)
    with pytest.raises(ValueError, match="another run of this decoder"):
        decoder.generate([TEXT[50:150]], 9)
    late = decoder.start([TEXT[50:150]], 9)
    for _ in range(2):
        with pytest.raises(ValueError, match="finish that one first, or raise max_cache_bytes"):
            decoder.step(late)
    while held.has_work:
        decoder.step(held)
    while late.has_work:
        decoder.step(late)
    assert decoder.finish(late).tokens == SpeculativeDecoder(oracle).generate([TEXT[50:150]], 9).tokens


@contextmanager
def another_thread(decoder: SpeculativeDecoder, act: Callable[[], object], monkeypatch, fails: bool = False):
    """Have another thread act, and stand still in its first pass while the block runs; yield what will come of it."""
    inside, goes_on, score = Event(), Event(), decoder.oracle.score

    def wait(*given, **named):
        if current_thread() is not main_thread() and not inside.is_set():
            inside.set()
            assert goes_on.wait(60)
            if fails:
                raise ArithmeticError("the other thread's own")
        return score(*given, **named)

    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as threads:
        patched.setattr(decoder.oracle, "score", wait)
        found: Future[object] = threads.submit(act)
        assert inside.wait(60)
        try:
            yield found
        finally:
            goes_on.set()


OTHER_THREAD = r"another thread is in the middle of a step .*give each thread a decoder of its own, or hold a lock"


@pytest.mark.parametrize("make", [lambda models: None, DRAFTS["chains"]], ids=["plain", "draft model"])
@pytest.mark.parametrize("models", [EAGER, NATIVE], ids=["eager", "native"])
def test_a_thread_that_decodes_while_another_one_does_is_refused_and_may_go_on_later(make, models, monkeypatch):
    shared, alone = pair(models.layered, lambda: make(models), num_pages=40)
    wanted = [alone.generate([text], 9, WARM).tokens for text in (TEXT[:50], TEXT[:60])]
    state = shared.start([TEXT[:60]], 9, WARM)
    with another_thread(shared, lambda: shared.generate([TEXT[:50]], 9, WARM), monkeypatch) as other:
        for act in (lambda: shared.generate([TEXT[:50]], 9), lambda: shared.step(state), lambda: shared.start([[1]])):
            with pytest.raises(RuntimeError, match=OTHER_THREAD):
                act()
    assert other.result().tokens == wanted[0]
    while state.has_work:
        shared.step(state)
    assert shared.finish(state).tokens == wanted[1]
    assert run_both((shared, alone), [TEXT[:60]], 0).num_prefix_tokens == 48


def test_a_copy_of_a_decoder_is_free_whoever_steps_the_original():
    turn = Turn({INSIDE: 1})
    assert copy.deepcopy([turn]) == pickle.loads(pickle.dumps([turn])) == [{}]
    assert type(copy.deepcopy(turn)) is Turn


def test_a_thread_whose_step_failed_or_whose_stream_was_left_lets_others_in(monkeypatch):
    shared, alone = pair(EAGER.layered, lambda: drafts.PromptLookup(3))
    wanted = alone.generate([TEXT[:50]], 9, WARM).tokens
    with another_thread(shared, lambda: shared.generate([TEXT[:50]], 9), monkeypatch, fails=True) as other:
        pass
    assert isinstance(other.exception(), ArithmeticError)
    stream = shared.stream(TEXT[:50], 9, WARM)
    next(stream)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(shared.generate, [TEXT[:50]], 9, WARM).result().tokens == wanted
        rest = [one for event in threads.submit(list, stream).result() for one in event.tokens]
        assert rest == wanted[0][-len(rest) :]
        threads.submit(next, left := shared.stream(TEXT[:50], 9, WARM)).result()
    left.close()
    assert shared.generate([TEXT[:50]], 9, WARM).tokens == wanted


def test_threads_that_hold_a_lock_share_what_was_read():
    shared, alone = pair(NATIVE.layered, lambda: drafts.SmallTransformer(NATIVE.model, 3), num_pages=20)
    texts, lock = [TEXT[10 * i : 10 * i + 80] for i in range(3)] * 3, Lock()

    def run(seed: int) -> list[list[int]]:
        with lock:
            return shared.generate([texts[seed]], 9, WARM, seed=seed).tokens

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(run, range(9)))
    assert found == [alone.generate([text], 9, WARM, seed=seed).tokens for seed, text in enumerate(texts)]


@pytest.mark.parametrize("models", [EAGER, NATIVE], ids=["eager", "native"])
def test_without_shared_prompts_threads_decode_at_once_but_not_one_state(models, monkeypatch):
    _, alone = pair(models.layered, lambda: drafts.SmallTransformer(models.model, 3))
    wanted = alone.generate([TEXT[:50]], 9, WARM).tokens
    state = alone.start([TEXT[:50]], 9, WARM)
    with another_thread(alone, lambda: alone.step(state), monkeypatch) as other:
        assert alone.generate([TEXT[:50]], 9, WARM).tokens == wanted
        with pytest.raises(RuntimeError, match=OTHER_THREAD):
            alone.step(state)
    other.result()
    while state.has_work:
        alone.step(state)
    assert alone.finish(state).tokens == wanted


def test_weights_of_inference_mode_are_refused_where_nobody_can_tell_whether_they_change():
    with torch.inference_mode():
        model = tiny_transformer(6, **SHAPE)
        native = tiny_transformer(6, torch.float32, pack=NativeTransformer, **SHAPE)
    reason = r"weights that were made inside torch\.inference_mode\(\): load the eager model outside of it"
    with pytest.raises(ValueError, match=reason):
        SpeculativeDecoder(model, prefix_sharing=True)
    decoder = SpeculativeDecoder(EAGER.layered, drafts.SmallTransformer(model, 2), prefix_sharing=True)
    with pytest.raises(ValueError, match=reason):
        decoder.start([TEXT[:50]], 9)
    assert len(SpeculativeDecoder(model).generate([TEXT[:50]], 9).tokens[0]) == 9
    run_both(pair(native, lambda: drafts.PromptLookup(3)), PROMPTS, 0)


def test_what_can_never_fit_is_refused_before_compute():
    oracle = EAGER.layered
    decoder = SpeculativeDecoder(oracle, prefix_sharing=True, max_cache_bytes=4 * oracle.page_bytes)
    with pytest.raises(ValueError, match=r"request 1 may fill 4 pages of 16 slots, and max_cache_bytes = .* holds 3"):
        decoder.start([[1, 2, 3], TEXT[:40]], 20)
    with pytest.raises(ValueError, match="request 0 may fill 1 pages of 16 slots, and max_cache_bytes = 1 holds 0"):
        SpeculativeDecoder(oracle, prefix_sharing=True, max_cache_bytes=1).start([[1]], 2)


def test_rows_that_lie_in_one_piece_are_refused():
    for kind in (GraphedTransformer, HuggingFaceLM, RecordedText, TabularLM):
        assert getattr(kind, "prefix_key", OracleDefaults.prefix_key) is OracleDefaults.prefix_key
    with pytest.raises(ValueError, match="passes of backend 'table' read rows that lie in one piece"):
        SpeculativeDecoder(TabularLM.random(6, 2, 0), prefix_sharing=True)
