"""When a graph is made, used and dropped, and that its inputs stay where it reads them: graphs of the host stand in."""

import gc
import weakref
from threading import Thread

import numpy as np
import pytest
import torch

import drafts
from experiments.strategies import STRATEGIES
from oracles.graphed import Graph, GraphedTransformer
from oracles.graphed.graphs import Graphs, PassCounts
from specdec import Kary, SamplingParams, SpeculativeDecoder
from tests.graphed.histories import PROMPTS, VOCAB, Recorded, asked, close, fill, history, pair
from tests.support.models.tiny_models import small_model
from tests.support.pairwise import diagonal


def graphed(most: int = 30, **changes: object) -> GraphedTransformer:
    return GraphedTransformer(small_model(dtype=torch.float64, **changes).pack(), most, Recorded)


def test_a_shape_is_captured_when_it_comes_again():
    model = graphed()
    cache, seen = model.new_cache(2, 64), []
    for size in (3, 4, 3, 4, 4, 9, 3):
        asked(2, size, False, np.arange(2), torch.Generator().manual_seed(size)).of(model, cache)
        seen.append((model.counts.passes_outside, model.counts.passes_in_graphs, model.counts.graphs))
    # Widths 3 and 4 share a bucket.
    assert seen == [(1, 0, 0), (1, 1, 1), (1, 2, 1), (1, 3, 1), (1, 4, 1), (2, 4, 1), (2, 5, 1)]
    assert (model.counts.captures, model.counts.padded_rows, model.counts.padded_nodes) == (1, 0, 2 * (3 * 1 + 3))


def test_what_a_graph_computes_is_what_its_pass_would():
    """Random histories meet each shape with other rows, lengths, trees and counts each time."""
    plain, recorded = pair()[1], pair(new_capture=Recorded)[1]
    for call, (wanted, found) in history([plain, recorded], 5, 60, 7):
        real = call.real if call.given["want"] == "all" else torch.Tensor.squeeze
        assert torch.equal(real(found.logits), real(wanted.logits))
    assert recorded.counts.passes_in_graphs > 30
    assert recorded.counts.graphs == recorded.counts.captures > 5
    assert plain.counts.passes_in_graphs == plain.counts.graphs == 0


def test_streams_that_enter_a_graph_are_read_anew():
    model, generator, rows = graphed(), torch.Generator().manual_seed(1), np.array([1, 0])
    cache = model.new_cache(2, 64)
    for _ in range(4):
        call = asked(2, 3, False, rows, generator, hidden=(0, 1))
        whole = call.of(model, cache)
        stream = whole.hidden[0]
        upper = model.score(call.tokens, None, call.num_nodes, cache, rows, layers=(1, 2), stream=stream)
        close(call.real(upper.logits), call.real(whole.logits))
    assert model.counts.passes_in_graphs == 6


def test_scores_outlive_the_next_replay():
    model, cache = graphed(), None
    cache = model.new_cache(1, 64)
    calls = [asked(1, 3, False, np.array([0]), torch.Generator().manual_seed(i), hidden=(0, 1)) for i in range(3)]
    for call in calls[:2]:
        call.of(model, cache)
    first = calls[0].of(model, cache)
    copies = [first.logits.clone(), *(layer.clone() for layer in first.hidden)]
    calls[2].of(model, cache)
    assert all(map(torch.equal, (first.logits, *first.hidden), copies))


def test_of_too_many_graphs_all_go_and_those_in_use_come_back():
    model = graphed(most=2)
    cache = model.new_cache(1, 200)
    for size in (1, 2, 4, 1, 2, 4, 1, 2):
        asked(1, size, False, np.array([0]), torch.Generator()).of(model, cache)
    # The third graph took the place of two; then those were captured again.
    assert (model.counts.captures, model.counts.graphs) == (5, 1)
    assert model.counts.passes_in_graphs == 5


def test_a_wide_tree_runs_outside_every_time():
    model = graphed(max_context=512)
    cache = model.new_cache(1, 300)
    for _ in range(3):
        asked(1, 200, True, np.array([0]), torch.Generator().manual_seed(0)).of(model, cache)
    assert (model.counts.passes_outside, model.counts.graphs) == (6, 0)


class Empty:
    """Memory of a cache, of which only its life counts."""


def test_graphs_go_with_the_memory_that_they_were_made_on():
    counts = PassCounts()
    graphs = Graphs(lambda: lambda compute: Graph(lambda: None, compute()), 5, counts)
    kept, gone = Empty(), Empty()
    for memory in (kept, gone, kept, gone):
        graphs.run(memory, "shape", tuple)
    assert counts.graphs == 2
    del memory, gone
    # They go before the next pass, never within one, which may be a capture.
    assert counts.graphs == 2
    graphs.run(Empty(), None, tuple)
    assert counts.graphs == 0
    # The shape is known still on what is left, and new to other memory.
    new = Empty()
    graphs.run(kept, "shape", tuple)
    graphs.run(new, "shape", tuple)
    assert (counts.graphs, counts.passes_outside) == (1, 4)


def test_a_graph_does_not_keep_memory_alive():
    model = GraphedTransformer(
        small_model().pack(),
        new_capture=lambda: lambda compute: Graph(lambda: None, tuple(x.clone() for x in compute())),
    )
    cache = model.new_cache(1, 64)
    for _ in range(3):
        asked(1, 3, False, np.array([0]), torch.Generator()).of(model, cache)
    memory = weakref.ref(cache.memory)
    del cache
    assert model.counts.graphs == 1, "the memory waits for the next cache of its shape"
    cache = model.new_cache(1, 1000)
    gc.collect()
    assert memory() is None
    asked(1, 3, False, np.array([0]), torch.Generator()).of(model, cache)
    assert model.counts.graphs == 0


def test_graphs_that_exist_together_have_one_capture_and_those_after_them_another():
    """A pool whose graphs are gone takes no new one, and a failed capture leaves none behind."""
    made: list[Recorded] = []
    broken = False

    def new_capture():
        made.append(Recorded())
        return refuse if broken else made[-1]

    def refuse(compute):
        raise RuntimeError("no")

    model = GraphedTransformer(small_model(dtype=torch.float64).pack(), 2, new_capture)
    cache = model.new_cache(1, 200)

    def score(*sizes: int) -> None:
        for size in sizes:
            asked(1, size, False, np.array([0]), torch.Generator()).of(model, cache)

    score(1, 2, 4, 1, 2)
    assert (len(made), made[0].made, model.counts.graphs) == (1, 2, 2)
    score(4)
    assert ([capture.made for capture in made], model.counts.graphs) == ([2, 1], 1)
    score(1)
    assert [capture.made for capture in made] == [2, 2]
    broken = True
    with pytest.raises(RuntimeError, match="could not be captured"):
        score(2)
    assert model.counts.graphs == 0


def test_a_run_without_requests_needs_no_memory():
    assert SpeculativeDecoder(graphed()).generate([]).tokens == []


def test_runs_of_one_shape_share_their_graphs():
    model = graphed()
    decoder = SpeculativeDecoder(model, drafts.PromptLookup(4))
    made = []
    for _ in range(3):
        decoder.generate(PROMPTS, 12, batch_size=2)
        made.append(model.counts.captures)
    assert made[0] > 0
    assert made[1] == made[2]


@diagonal(
    {
        "sampling": {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=0.8, top_p=0.95)},
        "batch_size": (1, 3, None),
    }
)
def test_decoding_in_graphs_emits_what_eager_decoding_does(sampling, batch_size):
    """Chains and trees; drafting models that grow trees level by level have graphs too."""
    eager, model = pair(new_capture=Recorded)
    small_eager, small = pair(new_capture=Recorded, num_layers=1)
    for make, rule in (
        (lambda one: drafts.PromptLookup(4), "standard"),
        (lambda one: drafts.SmallTransformer(one, 3), "standard"),
        (lambda one: drafts.SmallTransformer(one, tree=Kary(2, 2)), "multi_draft"),
    ):
        wanted = SpeculativeDecoder(eager, make(small_eager), rule).generate(
            PROMPTS, 16, sampling, batch_size=batch_size
        )
        found = SpeculativeDecoder(model, make(small), rule).generate(PROMPTS, 16, sampling, batch_size=batch_size)
        assert found.tokens == wanted.tokens
        assert (found.backend, found.exactness) == ("graphed", "exact up to numerics")
    assert model.counts.passes_in_graphs > model.counts.passes_outside
    assert small.counts.passes_in_graphs > 0


def test_a_view_on_the_oracles_cache_has_graphs_of_its_own():
    eager, model = pair(new_capture=Recorded)
    view = GraphedTransformer(small_model(seed=3, dtype=torch.float64).pack(), new_capture=Recorded)
    prompts = [[i % VOCAB for i in range(1, 9)], [3, 4]]
    wanted = SpeculativeDecoder(eager).generate(prompts, 20)
    found = SpeculativeDecoder(model, drafts.Quantized(model, view, 3)).generate(prompts, 20)
    assert found.tokens == wanted.tokens
    assert view.counts.passes_in_graphs > 0 < model.counts.passes_in_graphs


def test_a_call_in_the_middle_of_another_threads_is_refused(monkeypatch):
    """Passes of two threads would read each other's numbers, and nobody would notice."""
    model, found = graphed(), []
    cache, answer = model.new_cache(1, 64), model._calls.answer
    call = asked(1, 3, False, np.array([0]), torch.Generator().manual_seed(0))
    wanted = call.of(model, cache).logits

    def meanwhile(act):
        try:
            found.append(act())
        except RuntimeError as error:
            found.append(error)

    def in_the_middle(*given):
        monkeypatch.undo()  # a call that is not refused would begin this again, without end
        acts = (
            lambda: call.of(model, cache),
            lambda: model.new_cache(1, 64),
            lambda: model.read_out(torch.zeros(1, 32, dtype=torch.float64)),
        )
        for act in acts:
            thread = Thread(target=meanwhile, args=(act,))
            thread.start()
            thread.join()
        return answer(*given)

    monkeypatch.setattr(model._calls, "answer", in_the_middle)
    assert torch.equal(call.of(model, cache).logits, wanted)
    reason = "another thread is in the middle of a call .*: give each thread an oracle of its own, or .*backend='eager'"
    for error in found[:2]:
        with pytest.raises(RuntimeError, match=reason):
            raise error
    assert found[2].shape == (1, VOCAB), "what is outside of graphs is anybody's"
    assert torch.equal(call.of(model, cache).logits, wanted)


def test_an_oracle_outlives_the_inference_mode_that_it_was_made_or_used_in():
    """What it keeps from run to run is written to by runs outside too."""
    for is_made_there in (True, False):
        with torch.inference_mode(is_made_there):
            model, small = pair(num_layers=3)[1], pair(num_layers=1)[1]
        for source in (drafts.EarlyExit(model, 1, num_draft_tokens=3), drafts.SmallTransformer(small, 3)):
            decoder = SpeculativeDecoder(model, source)
            with torch.inference_mode():
                wanted = decoder.generate(PROMPTS, 16).tokens
            assert decoder.generate(PROMPTS, 16).tokens == wanted


def test_a_pass_that_cannot_be_captured_is_an_error_that_says_what_to_do():
    def refuse(compute):
        raise RuntimeError("operation not permitted when stream is capturing")

    model = GraphedTransformer(small_model().pack(), new_capture=lambda: refuse)
    cache = model.new_cache(1, 64)
    fill([model], [cache], [3], torch.Generator())
    with pytest.raises(RuntimeError, match=r"Bucket\(rows=1, width=4, .*not permitted .*; load with backend='eager'"):
        asked(1, 4, False, np.array([0]), torch.Generator()).of(model, cache)


def test_no_graphs_at_all_are_refused():
    with pytest.raises(ValueError, match="max_graphs is 0; give at least 1, or load with backend='eager'"):
        GraphedTransformer(small_model().pack(), max_graphs=0)


def test_drafts_of_the_first_layers_and_the_rest_of_the_pass_run_in_graphs():
    for num_layers in (1, 2):
        eager, model = pair(new_capture=Recorded, num_layers=3)
        wanted = SpeculativeDecoder(eager).generate(PROMPTS, 16)
        source = drafts.EarlyExit(model, num_layers, num_draft_tokens=3)
        assert SpeculativeDecoder(model, source).generate(PROMPTS, 16).tokens == wanted.tokens
        assert model.counts.passes_in_graphs > model.counts.passes_outside


def test_the_experiments_early_exit_takes_a_graphed_oracle():
    settings = {"head": "none", "num_layers": None, "num_draft_tokens": 2}
    source = STRATEGIES["early_exit"].build(settings, graphed(num_layers=3))
    assert isinstance(source, drafts.EarlyExit)
