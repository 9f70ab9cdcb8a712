"""Chains and trees read what stands in a row from where its keys end, and keep the books of the cache by themselves."""

import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from drafts import Quantized, SmallTransformer
from oracles.native import NativeTransformer
from oracles.native.native_model import NativeModel
from oracles.native.rotations import tables_of
from oracles.transformer.eager import Transformer
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import Draft, Draws, TreePlan
from specdec.drafting import DraftModel, JudgingModel
from tests.support.backends import needed_native
from tests.support.models.tiny_models import tiny_transformer, tiny_unpacked

needed_native()

VOCAB = 23
IDS = np.random.default_rng(0).integers(0, VOCAB, (3, 40))
ENDS, ROWS, LIMITS = np.array([9, 31, 17]), np.array([2, 0, 3]), np.array([4, 2, 0])
NODES, PLAN = np.array([6, 3, 0]), TreePlan(np.array([-1, -1, 0, 0, 1, 2]))
BY_RANK = Draws(np.array([[1.0], [0.0], [1.0], [0.0]]).repeat(3, axis=1), None)


def cached(counts, capacity=48, **options):
    """Return a model, and a cache that holds the keys of the first ids of each row."""
    model = tiny_transformer(VOCAB, torch.float32, 1, NativeTransformer, **options)
    cache = model.new_cache(4, capacity)
    for row, ids, count in zip(ROWS, IDS, counts, strict=True):
        model.score(torch.from_numpy(ids[None, :count]), None, torch.tensor([count]), cache, np.array([row]), "none")
        cache.commit(np.array([row]), None, np.array([count]))
    return model, cache


def chains(model, cache, ids=IDS, ends=ENDS, rows=ROWS, limits=LIMITS, watch=None):
    return model.follow_ids(ids, ends, cache, rows, limits, watch)[:2]


def trees(model, cache, ids=IDS, ends=ENDS, rows=ROWS, limits=NODES):
    return model.trees(ids, ends, cache, rows, PLAN, limits, BY_RANK)[:2]


@pytest.mark.parametrize(("draft", "scored"), [(chains, [3, 1, 0]), (trees, [0, 0, 0])])
@pytest.mark.parametrize("counts", [[8, 30, 16], [0, 30, 16], [1, 2, 17], [5, 0, 9]])
def test_what_is_drafted_depends_on_what_stands_and_not_on_what_was_cached(draft, scored, counts):
    (model, cache), (again, other) = cached(counts), cached(ENDS - 1)
    found, wanted = draft(model, cache), draft(again, other)
    for mine, theirs in zip(found, wanted, strict=True):
        assert np.array_equal(mine[:2], theirs[:2])
    assert cache.lengths[ROWS].tolist() == other.lengths[ROWS].tolist() == (ENDS + scored).tolist()
    assert cache.lengths[1] == 0
    last, ones = torch.tensor([[1], [2], [3]]), torch.ones(3).long()
    after = [model.score(last, None, ones, each, ROWS).logits for each in (cache, other)]
    assert torch.equal(*after)


@pytest.mark.parametrize("draft", [chains, trees])
def test_ids_of_any_integers_and_strides_are_read(draft):
    wanted = draft(*cached(ENDS - 1))
    for ids in (IDS.astype(np.int32), np.repeat(IDS, 2, axis=1)[:, ::2], np.asfortranarray(IDS)):
        for mine, theirs in zip(draft(*cached(ENDS - 1), ids), wanted, strict=True):
            assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("draft", [chains, trees])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ends": np.array([9, 41, 17])}, r"ends must be above .* \(rows \[2, 0, 3\] .* ends \[9, 41, 17\]"),
        ({"ends": np.array([9, 31, 15])}, "ends must be above"),
        ({"ends": np.array([9, -1, 17])}, "ends must be above"),
        ({"ends": np.array([8, 31, 17])}, "ends must be above"),  # it drafts, and there is nothing to draft after
        ({"rows": np.array([2, 0, 4])}, "rows name a row"),
        ({"rows": np.array([2, -1, 3])}, "rows name a row"),
        ({"ids": IDS - VOCAB}, "outside the vocabulary"),
        ({"ids": IDS[:2]}, r"ids must be an array of the host of integers \[3, L\], not int64 of shape \(2, 40\)"),
        ({"ids": IDS[0]}, "ids must be an array"),
        ({"ids": np.array(1)}, "ids must be an array"),
        ({"ids": IDS.tolist()}, "not a list"),
        ({"ids": IDS.astype(float)}, "not float64"),
        ({"ids": torch.from_numpy(IDS)}, "not a Tensor"),
        ({"ends": ENDS[:2]}, "ends must be an array of the host of integers .3., not "),
        ({"ends": ENDS.astype(float)}, "ends must be .* not float64 of shape"),
        ({"ends": torch.from_numpy(ENDS)}, "ends must be an array of the host of integers .3., not a Tensor"),
    ],
)
def test_what_cannot_stand_is_refused_and_the_cache_keeps_its_books(draft, changed, message):
    model, cache = cached(ENDS - 1)
    lengths = cache.lengths.copy()
    with pytest.raises(ValueError, match=message):
        draft(model, cache, **changed)
    assert np.array_equal(cache.lengths, lengths)
    draft(model, cache)


@pytest.mark.parametrize(("draft", "limits", "slots"), [(chains, [1, 4, 1], 34), (trees, [0, 5, 0], 33)])
def test_a_row_needs_slots_for_all_that_is_scored_and_for_nothing_else(draft, limits, slots):
    ends = ENDS + np.array([0, 48 - slots, 0])
    ids = np.pad(IDS, ((0, 0), (0, 9)))
    model, cache = cached(ENDS - 1)
    with pytest.raises(ValueError, match="give new_cache a larger capacity"):
        draft(model, cache, ids, ends + np.array([0, 1, 0]), limits=np.array(limits))
    draft(model, cache, ids, ends, limits=np.array(limits))


def test_a_row_needs_positions_for_all_that_is_scored():
    short, cache = cached(ENDS - 1, 64, max_context=int(ENDS[1]) + 2)
    call, limits = (IDS, ENDS, cache, ROWS), np.array([0, 6, 0])
    short.follow_ids(*call, np.array([1, 3, 1]))
    cache.truncate(ROWS, ENDS - 1)
    short.trees(IDS, ENDS, cache, ROWS, PLAN, limits, BY_RANK)
    cache.truncate(ROWS, ENDS - 1)
    with pytest.raises(ValueError, match="max_context has no position left"):
        short.follow_ids(*call, np.array([1, 4, 1]))
    with pytest.raises(ValueError, match="max_context has no position left"):
        short.trees(IDS, ENDS + np.array([0, 1, 0]), cache, ROWS, PLAN, limits, BY_RANK)


@pytest.mark.parametrize("draft", [chains, trees])
def test_what_was_drafted_in_a_row_does_not_outlive_it(draft):
    # Texts that fill their pages: what is drafted lies on the next ones, which hold nothing else.
    full = np.array([16, 32, 16])
    model, cache = cached(full - 1)
    draft(model, cache, ends=full)
    assert all(tensor.any() for tensor in cache.tensors)
    cache.reset(ROWS)
    assert not any(tensor.any() for tensor in cache.tensors)
    assert not cache.lengths.any()


@pytest.mark.parametrize("failure", [ZeroDivisionError("told too much"), ValueError("told too much")])
def test_a_cache_keeps_nothing_of_chains_whose_watch_fails(failure):
    def fail(depth, confidence):
        if depth == 1:
            raise failure

    model, cache = cached(ENDS - 1)
    watch = SimpleNamespace(limits=LIMITS, reads_entropy=False, reads_confidence=True, after=fail)
    with pytest.raises(type(failure), match="told too much"):
        chains(model, cache, watch=watch)
    with pytest.raises(ValueError, match="rows name a row"):
        chains(model, cache, rows=np.array([2, 0, 4]), watch=watch)
    assert cache.lengths[ROWS].tolist() == (ENDS - 1).tolist()
    assert np.array_equal(chains(model, cache)[0], chains(*cached(ENDS - 1))[0])


@pytest.mark.parametrize("draft", [chains, trees])
def test_a_cache_keeps_nothing_of_a_call_that_is_interrupted_at_its_end(draft, monkeypatch):
    model, cache = cached(ENDS - 1)
    run = NativeModel._run

    def interrupted(*call):
        run(*call)
        assert cache.lengths[2] >= ENDS[0]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(NativeModel, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            draft(model, cache)
    assert cache.lengths[ROWS].tolist() == (ENDS - 1).tolist()
    for mine, theirs in zip(draft(model, cache), draft(*cached(ENDS - 1)), strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("call", ["score", "chains"])
def test_the_tables_of_a_call_outlive_those_of_the_model(call, monkeypatch):
    model, cache = cached(ENDS - 1, max_context=4096)
    native, alive = model.native, []

    class Meanwhile:
        """The library, at each of whose calls another thread scores a longer text."""

        def __getattr__(self, name):
            function = getattr(library, name)

            def call(*given):
                table = weakref.ref(native._tables.cosines)
                native._tables = tables_of(native.config, native._rotated, 1000)
                alive.append(table() is not None)
                return function(*given)

            return call

    library = native._library
    monkeypatch.setattr(native, "_library", Meanwhile())
    if call == "chains":
        chains(model, cache)
    else:
        model.score(torch.from_numpy(IDS[:, :1]), None, torch.ones(3).long(), cache, ROWS)
    assert alive
    assert all(alive)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("makes", [Quantized, SmallTransformer])
def test_a_decoder_goes_on_after_an_interrupt_and_its_state_does_not(makes, temperature, monkeypatch):
    oracle, view = (NativeTransformer(tiny_unpacked(VOCAB, torch.float32, 1)) for _ in range(2))
    decoder = SpeculativeDecoder(oracle, makes(oracle, view) if makes is Quantized else makes(view))
    wanted = decoder.generate([[1, 2, 3]], 20, SamplingParams(temperature), seed=1).tokens
    state, _ = decoder.step(decoder.start([[1, 2, 3]], 20, SamplingParams(temperature), seed=1))
    draft = NativeModel.draft

    def interrupted(*call, **named):
        draft(*call, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(NativeModel, "draft", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoder.step(state)
    with pytest.raises(ValueError, match="a step of this state was interrupted"):
        decoder.step(state)
    assert state.emitted()[0] == wanted[0][: len(state.emitted()[0])] != []
    assert decoder.generate([[1, 2, 3]], 20, SamplingParams(temperature), seed=1).tokens == wanted


def test_chains_that_want_no_ids_keep_none():
    model, cache = cached(ENDS - 1)
    chains(model, cache, limits=np.zeros(3, dtype=np.int64))
    assert cache.lengths[ROWS].tolist() == (ENDS - 1).tolist()


def test_compiled_code_keeps_books_as_python_does():
    random = np.random.default_rng(1)
    model, ours = cached(np.zeros(3, dtype=np.int64))
    theirs = model.new_cache(4, 48)
    for _ in range(40):
        first = np.minimum(ours.lengths[ROWS], random.integers(0, 30, 3))
        ends, limits = first + random.integers(1, 6, 3), random.integers(0, 5, 3)
        limits[random.integers(3)] = 4
        for cache in (ours, theirs):
            cache.truncate(ROWS, first)
        drafted = np.maximum(limits - 1, 0)
        chains(model, ours, ends=ends, limits=limits)
        theirs.reserve(ROWS, ends - first + drafted)
        theirs.commit(ROWS, None, ends - first + drafted)
        assert np.array_equal(ours.lengths, theirs.lengths)
        assert np.array_equal(ours._written, theirs._written)


def test_a_drafting_model_knows_what_it_caught_up_with():
    model = DraftModel(tiny_transformer(VOCAB, torch.float32, 1, NativeTransformer), 4, 40, torch.device("cpu"))
    model.begin(ROWS, [ids[:5] for ids in IDS])
    warping = SimpleNamespace(adjustments=None)
    watch = SimpleNamespace(limits=np.ones(3, np.int64), reads_entropy=False, reads_confidence=False)
    for end in (6, 9):
        ends = end + np.array([0, 2, 1])
        context = SimpleNamespace(ids=IDS, num_committed=ends, warping=warping)
        model.follow(ROWS, context, np.ones(3, np.int64), watch, None)
        assert np.array_equal(model.cache.lengths[ROWS], ends)
    other = IDS[:, 4:9].copy()
    other[0, 4], other[1, 2] = (other[0, 4] + 1) % VOCAB, (other[1, 2] + 1) % VOCAB
    model.sync(ROWS, np.full(3, 4), other)
    assert model.cache.lengths[ROWS].tolist() == [8, 6, 9]


@pytest.mark.parametrize("pack", [NativeTransformer, Transformer.pack])
def test_a_drafting_model_keeps_the_keys_of_the_ids_that_stand(pack):
    model = JudgingModel(tiny_transformer(VOCAB, torch.float32, 1, pack), 4, 36, torch.device("cpu"))
    model.begin(ROWS, [ids[:end] for ids, end in zip(IDS, ENDS, strict=True)])
    start = model.chain_start(ROWS, IDS, ENDS)
    assert start.behind.tolist() == [1, 1, 1]
    drafted = IDS[np.arange(3)[:, None], ENDS[:, None] + np.arange(4)]
    model.score_chain(start, Draft(torch.from_numpy(drafted), torch.full((3,), 4)))
    model.keep_chain(ROWS, ENDS, drafted, np.array([4, 4, 2]))
    emitted = np.pad(drafted, ((0, 0), (0, 3)), constant_values=-1)
    emitted[0, 2] = (emitted[0, 2] + 1) % VOCAB
    model.sync(ROWS, ENDS, emitted)  # beyond the capacity in row 1
    assert model.cache.lengths[ROWS].tolist() == (ENDS + np.array([2, 4, 2])).tolist()
    assert model.ids.shape == (4, 37)
    model.sync(ROWS, ENDS - 3, IDS[np.arange(3)[:, None], ENDS[:, None] - 3 + np.arange(1)])
    assert model.cache.lengths[ROWS].tolist() == (ENDS - 2).tolist()
