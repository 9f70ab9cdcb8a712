"""Graphed passes score as the eager ones do, whatever the bucket; padding is felt by nobody."""

import numpy as np
import pytest
import torch

from oracles.graphed import GraphedTransformer
from oracles.graphed.graphed_memory import round_capacity
from specdec.cache import prefill
from tests.graphed.histories import VOCAB, asked, close, fill, history, pair
from tests.support.models.tiny_models import FAMILIES, small_model
from tests.support.pairwise import diagonal, first_of

WIDTHS = (1, 2, 127, 128, 129)


@diagonal({"num_rows": (1, 2, 63, 64, 65), "tree": {"chains": False, "trees": True}})
def test_calls_at_the_edges_of_buckets_score_as_eager_ones(num_rows, tree):
    eager, graphed = pair(num_layers=1, hidden_size=16, num_heads=2, num_kv_heads=1)
    generator = torch.Generator().manual_seed(num_rows)
    for size in WIDTHS:
        caches = [model.new_cache(num_rows, 192) for model in (eager, graphed)]
        fill([eager, graphed], caches, [(7 * row) % 50 for row in range(num_rows)], generator)
        call = asked(num_rows, size, tree, np.arange(num_rows), generator, hidden=(0,))
        wanted, found = (call.of(model, cache) for model, cache in zip((eager, graphed), caches, strict=True))
        close(call.real(found.logits), call.real(wanted.logits))
        close(call.real(found.hidden[0]), call.real(wanted.hidden[0]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", first_of(0, 1))
def test_random_ragged_histories_score_as_eager_ones(family, seed):
    eager, graphed = pair(**FAMILIES[family])
    shapes = set()
    for call, (wanted, found) in history([eager, graphed], 5, 25, seed):
        shapes.add((*call.tokens.shape, call.parents is None))
        if call.given["want"] == "last":
            close(found.logits, wanted.logits)
        else:
            close(call.real(found.logits), call.real(wanted.logits))
    assert len(shapes) > 15
    assert graphed.counts.padded_rows > 0 < graphed.counts.padded_nodes


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_a_call_of_several_passes_is_one_call(tree):
    eager, graphed = pair(max_context=512)
    generator, rows = torch.Generator().manual_seed(3), np.array([2, 0])
    caches = [model.new_cache(3, 400) for model in (eager, graphed)]
    fill([eager, graphed], caches, [30, 5, 77], generator)
    for want in ("all", "last", "none"):
        call = asked(2, 300, tree, rows, torch.Generator().manual_seed(4), want=want, hidden=(1,))
        call.num_nodes[1] = 140
        before = graphed.counts.passes_outside
        wanted, found = (call.of(model, cache) for model, cache in zip((eager, graphed), caches, strict=True))
        assert graphed.counts.passes_outside == before + 3
        close(call.real(found.hidden[0]), call.real(wanted.hidden[0]))
        if want == "none":
            assert found.logits is None
        else:
            real = call.real if want == "all" else torch.Tensor.squeeze
            close(real(found.logits), real(wanted.logits))


def test_parts_of_wide_calls_of_many_rows_go_on_from_their_streams():
    eager, graphed = pair()
    generator, rows = torch.Generator().manual_seed(5), np.arange(70)
    caches = [model.new_cache(70, 160) for model in (eager, graphed)]
    call = asked(70, 131, True, rows, generator, hidden=(1,))
    whole = call.of(eager, caches[0])
    lower = asked(70, 131, True, rows, torch.Generator().manual_seed(5), want="none", hidden=(0,), layers=(0, 1))
    stream = lower.of(graphed, caches[1]).hidden[0]
    upper = asked(70, 131, True, rows, torch.Generator().manual_seed(5), hidden=(1,), layers=(1, 2), stream=stream)
    made = upper.of(graphed, caches[1])
    close(call.real(made.logits), call.real(whole.logits))
    close(call.real(made.hidden[0]), call.real(whole.hidden[0]))


def test_long_prompts_are_prefilled_in_chunks():
    eager, graphed = pair(max_context=512)
    prompts = [np.random.default_rng(i).integers(0, VOCAB, n) for i, n in enumerate((300, 1, 129, 130))]
    last, found = torch.tensor([[int(prompt[-1])] for prompt in prompts]), []
    for model in (eager, graphed):
        cache = model.new_cache(4, 320)
        prefill(model, cache, np.arange(4), prompts)
        assert cache.lengths.tolist() == [299, 0, 128, 129]
        found.append(model.score(last, None, torch.ones(4, dtype=torch.int64), cache, np.arange(4)).logits)
    close(found[1], found[0])


def ready(rows: int = 5, **changes: object):
    """Return a graphed oracle, and a maker of caches that all hold the same."""
    model = GraphedTransformer(small_model(**changes).pack())

    def cache():
        made = model.new_cache(rows, 100)
        fill([model], [made], [9, 30, 0, 64, 17][:rows], torch.Generator().manual_seed(6))
        return made

    return model, cache


@pytest.mark.parametrize("rows", [[3, 0], [3, 0, 1]], ids=["gathered", "whole"])
@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_padding_changes_no_bit_of_a_real_row(rows, tree):
    """Other rows, slots after a row's own and the scratch line hold other numbers, padded nodes other ids."""
    model, make = ready()
    call = asked(len(rows), 5, tree, np.array(rows), torch.Generator().manual_seed(7))
    found = []
    for other in (0.0, 3.0):
        cache = make()
        memory = cache.memory
        for lines in memory.lines[0] + memory.lines[1]:
            lines[memory.scratch] = float("nan") if other else 1.0
        for row in set(range(5)) - set(rows):
            cache.payload[:, :, row] += other
        for row, nodes in zip(rows, call.num_nodes.tolist(), strict=True):
            cache.payload[:, :, row, :, cache.lengths[row] + nodes :] = other
        call.tokens[torch.arange(5) >= call.num_nodes.unsqueeze(1)] = int(other)
        found.append(call.real(call.of(model, cache).logits))
    assert torch.equal(*found)


@pytest.mark.parametrize("rows", [[3, 0], [3, 0, 1]], ids=["gathered", "whole"])
@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_a_pass_writes_the_slots_of_real_nodes_and_no_others(rows, tree):
    model, make = ready()
    cache, call = make(), asked(len(rows), 7, tree, np.array(rows), torch.Generator().manual_seed(8))
    cache.payload.fill_(-5.0)
    call.of(model, cache)
    # [rows, slots]
    written = (cache.payload != -5.0).all(-1).all(3).all(1).all(0)
    touched = (cache.payload != -5.0).any(-1).any(3).any(1).any(0)
    wanted = torch.zeros(5, cache.capacity, dtype=torch.bool)
    for row, nodes in zip(rows, call.num_nodes.tolist(), strict=True):
        wanted[row, cache.lengths[row] : cache.lengths[row] + nodes] = True
    assert torch.equal(written, wanted)
    assert torch.equal(touched, wanted)


def test_a_row_can_be_filled_to_its_last_slot():
    eager, graphed = pair(max_context=128)
    for size in (1, 5, 8):
        caches = [model.new_cache(2, 128) for model in (eager, graphed)]
        fill([eager, graphed], caches, [128 - size, 40], torch.Generator().manual_seed(9))
        for tree in (False, True):
            call = asked(2, size, tree, np.arange(2), torch.Generator().manual_seed(10))
            wanted, found = (call.of(model, cache) for model, cache in zip((eager, graphed), caches, strict=True))
            close(call.real(found.logits), call.real(wanted.logits))
        with pytest.raises(ValueError, match=r"row 0 .* its capacity is 128"):
            asked(2, size + 1, False, np.arange(2), torch.Generator()).of(graphed, caches[1])


def test_the_same_calls_give_the_same_bits():
    runs = []
    for _ in range(2):
        _, graphed = pair(torch.float32)
        runs.append([call.real(scores.logits) for call, (scores,) in history([graphed], 5, 12, 2)
                     if call.given["want"] == "all"])  # fmt: skip
    assert len(runs[0]) > 3
    assert all(map(torch.equal, *runs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scores_as_eagerly(dtype):
    eager, graphed = pair(dtype)
    for call, scores in history([eager, graphed], 3, 8, 1):
        wanted, found = (call.real(one.logits) if call.given["want"] == "all" else one.logits for one in scores)
        assert found.dtype == wanted.dtype == torch.float32
        # A score is a chain of some dozen roundings of numbers as large as the largest.
        assert float((found - wanted).abs().max()) < 16 * torch.finfo(dtype).eps * float(wanted.abs().max())


def test_capacities_are_few_and_little_above_what_was_asked():
    sizes = {round_capacity(capacity) for capacity in range(1, 33_000)}
    assert len(sizes) < 64
    for capacity in range(1, 33_000, 7):
        assert capacity <= round_capacity(capacity) <= max(64 * -(-capacity // 64), 1.125 * capacity)
        assert round_capacity(round_capacity(capacity)) == round_capacity(capacity)


@pytest.mark.parametrize("capacity", [128, 1024])
def test_a_new_cache_of_the_same_shape_takes_the_memory_of_one_that_is_gone(capacity):
    _, graphed = pair()
    cache = graphed.new_cache(2, capacity)
    fill([graphed], [cache], [9, 3], torch.Generator().manual_seed(0))
    other, memory = graphed.new_cache(2, capacity), cache.memory
    assert other.memory is not memory, "the first one is in use"
    del cache
    again = graphed.new_cache(2, capacity - 1)
    assert again.memory is memory
    assert not again.payload.any()
    assert again.lengths.tolist() == [0, 0]
    with pytest.raises(ValueError, match="max_cache_bytes"):
        graphed.new_cache(2, capacity, again.bytes - 1)
    del again
    with pytest.raises(ValueError, match="max_cache_bytes"):
        graphed.new_cache(2, capacity, memory.slots.nbytes - 1)
