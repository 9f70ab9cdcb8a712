"""EAGLE-3 heads in compiled code: beside the reference and the eager head, and the same bits however they are asked."""

from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import drafts
from oracles import load_head
from oracles.heads import Eagle3Head, NativeEagle3Head, head_tensors
from oracles.heads.head_tensors import narrow
from oracles.native import NativeTransformer
from oracles.quantisation import STORED, QuantisedWeight
from oracles.transformer.linear import Linear
from specdec import Kary, Paths, SpeculativeDecoder
from specdec.contracts import Features
from specdec.drafting import HeadModel
from tests.support.backends import needed_native
from tests.support.drafting.eagle3_histories import history_of
from tests.support.models.eagle3_heads import LAYOUTS, SIZE, Layout, write_head
from tests.support.models.native_models import ASKED, HEAD_TYPES, SAMPLINGS, assert_near, assert_plain_tokens
from tests.support.models.tiny_models import tiny_transformer, tiny_unpacked
from tests.support.pairwise import first_of, pairwise

needed_native()

VOCAB, CAPACITY = 11, 48
SHAPE = {"num_layers": 6, "max_context": 64}
FEW = Layout("specforge", ids=(0, 2, 4), own_embedding=False, written=(0, 2, 3, 7, 10))
NORMED = Layout(
    "specforge",
    ids=(0, 2, 4),
    own_head=False,
    own_embedding=False,
    fc_norm="fc_norm",
    flags={"norm_output": True, "norm_before_residual": True},
)


@cache
def oracle_of(hidden_size: int = SIZE) -> NativeTransformer:
    return NativeTransformer(tiny_unpacked(VOCAB, torch.float32, hidden_size=hidden_size, **SHAPE))


def head_of(layout: Layout, dtype: torch.dtype = torch.float32, seed: int = 0, **options: Any) -> Any:
    """Return a head of an oracle that is the same for all."""
    with TemporaryDirectory() as folder:
        write_head(Path(folder), oracle_of(), layout, seed, dtype)
        return load_head(folder, oracle_of(), aux_layers="outputs", **options)


def as_the_reference(layout: Layout, folder: Path, seed: int = 0) -> float:
    """Return how far logits and features are from the reference's after a history of drafts and rollbacks."""
    plain = tiny_unpacked(VOCAB, torch.float32, **SHAPE)
    history = history_of(folder, layout, oracle_of(), plain, seed, torch.float32)
    assert isinstance(history.head, NativeEagle3Head)
    assert history.compared > 20
    return history.worst


@pytest.mark.parametrize("seed", first_of(0, 1))
@pytest.mark.parametrize("name", LAYOUTS)
def test_logits_and_what_is_left_for_children_are_the_references(name, seed, tmp_path):
    assert as_the_reference(LAYOUTS[name], tmp_path, seed) < 1e-3  # logits are of the order of 100


def test_the_norms_that_a_head_may_have_are_the_references(tmp_path):
    assert as_the_reference(NORMED, tmp_path) < 2e-3


def check_reference(layout: Layout) -> None:
    """Fail unless a head's logits and features are those of the reference."""
    with TemporaryDirectory() as folder:
        assert as_the_reference(layout, Path(folder)) < 2e-3


def states_of(lengths: list[int], seed: int = 0) -> tuple[Tensor, ...]:
    """Return hidden states ``[B, L, D]`` of three layers; a row's are the same whatever its batch."""
    whole = torch.full((3, len(lengths), max(lengths), SIZE), torch.nan)
    for row, length in enumerate(lengths):
        whole[:, row, :length] = torch.randn(3, length, SIZE, generator=torch.Generator().manual_seed(seed + row))
    return whole.unbind(0)


@dataclass
class Played:
    """What came of some rows: logits after every id ``[B, L, V]``, and the cache."""

    logits: list[Tensor]
    cache: Any


def texts_of(lengths: list[int]) -> list[Tensor]:
    return [
        torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(7 + row))
        for row, length in enumerate(lengths)
    ]


def played(head: Any, lengths: list[int], chunk: int, rows: list[int] | None = None) -> Played:
    """Put all features of texts, and score their ids a chunk at a time."""
    batch = np.arange(len(lengths)) if rows is None else np.array(rows)
    cached = head.new_cache(max(batch) + 2, CAPACITY)
    counts = np.array(lengths)
    head.put(Features(batch, np.zeros_like(counts), counts, states_of(lengths)), cached)
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, text in zip(ids, texts_of(lengths), strict=True):
        row[: len(text)] = text
    found: list[list[Tensor]] = [[] for _ in lengths]
    for start in range(0, max(lengths), chunk):
        some = np.flatnonzero(counts > start)
        now = np.minimum(counts[some] - start, chunk)
        scores = head.score(ids[some, start : start + chunk], None, torch.from_numpy(now), cached, batch[some])
        cached.commit(batch[some], None, now)
        for b, row, n in zip(some, scores.logits, now, strict=True):
            found[b].append(row[:n])
    return Played([torch.cat(parts) for parts in found], cached)


@pytest.mark.parametrize("layout", [FEW, NORMED], ids=("few ids", "norms"))
@pytest.mark.parametrize("name", HEAD_TYPES)
def test_it_scores_as_the_eager_head_does(name, layout):
    dtype, weights, error = HEAD_TYPES[name]
    native, eager = (head_of(layout, dtype, weights=weights, backend=backend) for backend in ("native", "eager"))
    assert (type(native), type(eager)) == (NativeEagle3Head, Eagle3Head)
    if weights is not None and layout is FEW:
        assert native.weight_type == weights
    ours, theirs = (played(head, [9, 4, 13], 13) for head in (native, eager))
    for found, wanted in zip(ours.logits, theirs.logits, strict=True):
        assert_near(found, wanted, error)


def test_a_text_in_chunks_has_the_bits_of_the_whole():
    head = head_of(FEW)
    whole, chunks = (played(head, [9, 14], chunk) for chunk in (20, 3))
    assert all(torch.equal(a, b) for a, b in zip(whole.logits, chunks.logits, strict=True))


@pytest.mark.parametrize("layout", [FEW, NORMED], ids=("few ids", "norms"))
@pytest.mark.parametrize("weights", [None, "int8", "int8-dynamic"], ids=str)
def test_bits_depend_on_the_path_alone(weights, layout, set_threads):
    head = head_of(layout, torch.bfloat16, weights=weights)
    lengths = [23, 5, 31]
    wanted = played(head, lengths, 40)
    for count, chunk, rows in ((1, 1, None), (2, 7, [2, 0, 3]), (3, 31, [1, 2, 0])):
        set_threads(count)
        found = played(head, lengths, chunk, rows)
        for b, row in enumerate(rows or range(3)):
            assert torch.equal(found.logits[b], wanted.logits[b])
            assert torch.equal(found.cache.features[row, : lengths[b] + 1], wanted.cache.features[b, : lengths[b] + 1])
    alone = played(head, lengths[:1], 3)
    assert torch.equal(alone.logits[0], wanted.logits[0])


def arrived(lengths: list[int], columns: list[list[int]] | None = None, starts: int = 0) -> Features:
    """Return hidden states of rows, of the given columns if there are some."""
    counts = np.array(lengths if columns is None else [len(row) for row in columns])
    wide = None if columns is None else np.array([row + [0] * (max(counts) - len(row)) for row in columns])
    return Features(np.arange(len(lengths)), np.full_like(counts, starts), counts, states_of(lengths), wide)


@pytest.mark.parametrize("layout", [FEW, NORMED], ids=("few ids", "norms"))
def test_states_that_arrive_are_features_of_their_columns_however_many_come_together(layout):
    head, lengths = head_of(layout), [31, 7, 30, 29, 31, 12, 31, 28, 31, 31, 30]
    together = head.new_cache(len(lengths), CAPACITY)
    head.put(arrived(lengths), together)
    assert sum(lengths) > 256
    columns = [list(range(0, length, 2)) for length in lengths]
    some = head.new_cache(len(lengths), CAPACITY)
    head.put(arrived(lengths, [row[:3] for row in columns]), some)
    head.put(arrived(lengths, [row[3:] for row in columns], starts=3), some)  # nobody has read the first ones
    for row, (length, chosen) in enumerate(zip(lengths, columns, strict=True)):
        alone, states = head.new_cache(1, CAPACITY), tuple(layer[row : row + 1] for layer in states_of(lengths))
        head.put(Features(np.array([0]), np.array([0]), np.array([length]), states), alone)
        assert alone.features[0, :length].isfinite().all()
        assert torch.equal(together.features[row], alone.features[0])
        assert torch.equal(some.features[row, : len(chosen)], alone.features[0, chosen])


def test_states_that_nobody_read_do_not_outlive_their_row():
    head = head_of(FEW)
    cached = head.new_cache(2, CAPACITY)
    head.put(arrived([5, 4]), cached)
    cached.reset(np.array([1]))
    assert cached.known.tolist() == [5, 0]
    assert cached.features[0, :5].any(dim=-1).all()
    assert not cached.features[1].any()


def test_states_that_cannot_arrive_are_refused_at_once():
    head = head_of(FEW)
    cached = head.new_cache(1, CAPACITY)
    with pytest.raises(ValueError, match=r"columns \[\[0, 3\]\] name nodes that a pass of 3 does not have"):
        head.put(arrived([3], [[0, 3]]), cached)
    with pytest.raises(ValueError, match=r"counts \[4\] are more than the 3 positions"):
        head.put(replace(arrived([3]), counts=np.array([4])), cached)
    narrow = replace(arrived([3]), scored=states_of([3])[:2])
    with pytest.raises(ValueError, match=f"hidden states are {2 * SIZE} wide, and the head reads {3 * SIZE}"):
        head.put(narrow, cached)
    assert cached.known.tolist() == [0]


def stand(head: Any, lengths: list[int]) -> tuple[Any, Any]:
    """Return a cache that has keys of all ids but the last of each text, and the texts."""
    made = played(head, lengths, 40)
    made.cache.truncate(np.arange(len(lengths)), np.array(lengths) - 1)
    ids = np.full((len(lengths), CAPACITY), -1)
    for row, text in zip(ids, texts_of(lengths), strict=True):
        row[: len(text)] = text.numpy()
    return made.cache, ids


@pytest.mark.parametrize("layout", [FEW, NORMED], ids=("few ids", "norms"))
def test_a_greedy_chain_in_one_call_is_that_of_single_passes(layout):
    head, lengths, limits = head_of(layout), [5, 9, 4], np.array([4, 1, 3])
    whole, ids = stand(head, lengths)
    rows, ends = np.arange(3), np.array(lengths)
    found, peaks, _ = head.follow_ids(ids, ends, whole, rows, limits)
    assert whole.lengths[:3].tolist() == [5 + 3, 9, 4 + 2]
    single, _ = stand(head, lengths)
    latest = torch.from_numpy(ids[rows, ends - 1])[:, None]
    for step in range(4):
        live = np.flatnonzero(limits > step)
        ones = torch.ones(len(live), dtype=torch.int64)
        logits = head.score(latest[live], None, ones, single, rows[live], "last").logits[:, 0]
        single.commit(rows[live], None, ones.numpy())
        assert torch.equal(torch.from_numpy(found[live, step]), logits.argmax(-1))
        assert torch.equal(torch.from_numpy(peaks[live, step]), logits.amax(-1))
        latest[live, 0] = logits.argmax(-1)
    for row, length in enumerate(whole.lengths[:3]):
        assert torch.equal(whole.features[row, : length + 1], single.features[row, : length + 1])


ORACLE = tiny_transformer(4, torch.float32, 1, NativeTransformer)


@cache
def four_ids() -> Any:
    with TemporaryDirectory() as folder:
        layout = Layout("specforge", ids=(0, 1, 1), own_embedding=False, written=(0, 1, 3))
        write_head(Path(folder), ORACLE, layout, dtype=torch.float32)
        return load_head(folder, ORACLE, aux_layers="outputs", weights="int8-dynamic")


SOURCES = {
    "chain": lambda: drafts.Eagle3(four_ids(), 4),
    "greedy chain": lambda: drafts.Eagle3(four_ids(), 3, temperature=0),
    "tree": lambda: drafts.Eagle3(four_ids(), tree=Kary(2, 2)),
    "paths": lambda: drafts.Eagle3(four_ids(), tree=Paths([(0, 0), (1,)])),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", SOURCES)
def test_whole_drafts_are_those_made_pass_by_pass(name, sampling, monkeypatch):
    rule = "multi_draft" if name in ("tree", "paths") else "standard"
    run = partial(
        SpeculativeDecoder(ORACLE, SOURCES[name](), rule).generate, ASKED, 20, SAMPLINGS[sampling], seed=3, batch_size=3
    )
    whole = run()
    monkeypatch.setattr(HeadModel, "follower", lambda *_: None)
    monkeypatch.setattr(HeadModel, "grower", lambda *_: None)
    single = run()
    assert whole.tokens == single.tokens
    assert whole.stats.num_accepted == single.stats.num_accepted
    assert whole.stats.num_drafted == single.stats.num_drafted > 50


@pairwise({"name": tuple(SOURCES), "rule": ("greedy", "coupled"), "batch_size": (3, 8)})
def test_tokens_equal_plain_decodings_and_drafts_do_not_depend_on_the_batch(name, rule, batch_size):
    assert_plain_tokens(ORACLE, SOURCES[name](), rule, batch_size)


def is_refused(head: Any, tokens: Tensor, parents: Tensor | None, cached: Any, row: Any) -> bool:
    try:
        head.score(tokens, parents, torch.tensor([tokens.shape[1]]), cached, row)
    except ValueError as error:
        return "hangs on one of the same pass" in str(error)
    return False


def test_a_node_that_hangs_on_one_of_the_same_pass_is_refused():
    head = head_of(FEW)
    cached, row, tree = head.new_cache(1, 16), np.array([0]), torch.tensor([[-1, 0, 0]])
    head.put(Features(row, np.array([0]), np.array([1]), states_of([1])), cached)
    tokens = torch.tensor([[1, 2, 3]])
    assert is_refused(head, tokens, tree, cached, row)
    assert is_refused(head, tokens, None, cached, row)
    head.score(tokens[:, :1], None, torch.tensor([1]), cached, row)
    head.score(tokens, tree, torch.tensor([3]), cached, row, first=1)


def test_nothing_of_the_oracle_is_copied_and_memory_is_counted():
    lean = head_of(NORMED)
    assert bytes(lean.native.struct.head) == bytes(oracle_of().native.struct.head)
    assert lean.native.struct.written == 0
    few = head_of(FEW)
    assert few.weight_bytes < head_of(Layout("specforge", ids=(0, 2, 4), written=(0, 2, 3, 7, 10))).weight_bytes
    cached = few.new_cache(2, 10)
    assert cached.features.shape == (2, cached.capacity + 1, SIZE)
    assert cached.bytes == cached.memory.keys.nbytes + cached.memory.values.nbytes + cached.features.nbytes
    with pytest.raises(ValueError, match="max_cache_bytes"):
        few.new_cache(2, 10, max_cache_bytes=cached.bytes - 1)


@pytest.mark.parametrize("weight_type", ["bfloat16", "q8_0-int8"])
def test_borrowed_rows_are_held_as_the_oracle_stores_them_and_change_no_bit(weight_type, tmp_path, monkeypatch):
    unpacked = tiny_unpacked(VOCAB, torch.bfloat16, tie_embeddings=True, **SHAPE)
    if weight_type != "bfloat16":
        rounded = QuantisedWeight.of(unpacked.model.embed_tokens.weight, "a table", STORED["q8_0"]).dequantise()
        unpacked = unpacked.float()
        with torch.no_grad():
            unpacked.model.embed_tokens.weight.copy_(rounded)
    oracle = NativeTransformer(unpacked)
    monkeypatch.setattr(NativeTransformer, "weight_type", weight_type)
    write_head(tmp_path, oracle, Layout("specforge", ids=(0, 2, 4), own_head=False, written=(0, 2, 7)))
    held = load_head(tmp_path, oracle)
    monkeypatch.setattr(head_tensors, "narrow", lambda *_: None)
    wide = load_head(tmp_path, oracle)
    assert (held.native.weight_type, wide.native.weight_type) == (weight_type.removesuffix("-int8"), "float32")
    assert held.weight_bytes < wide.weight_bytes
    ours, theirs = (played(head, [9, 4], 13) for head in (held, wide))
    assert all(torch.equal(a, b) for a, b in zip(ours.logits, theirs.logits, strict=True))


def test_rows_that_a_narrower_type_would_change_stay_as_they_are():
    layer = Linear(SIZE, 8)
    weight = torch.randn(8, SIZE, generator=torch.Generator().manual_seed(0))
    for weight_type in ("q8_0", "bfloat16", "int8", "float32"):
        layer.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
        narrow(layer, "a head", weight_type)
        assert layer.quantised is None
        assert layer.weight.dtype == torch.float32
        assert torch.equal(layer.weight, weight)


def test_rows_are_not_held_in_a_format_with_minima():
    layer = Linear(32, 2)
    layer.weight = torch.nn.Parameter(torch.arange(-16.0, 16.0).clamp(min=-15).repeat(2, 1), requires_grad=False)
    narrow(layer, "a head", "q4_1")
    assert layer.quantised is None


def test_ids_that_pad_the_vocabulary_are_written_by_nobody(tmp_path):
    oracle = NativeTransformer(tiny_unpacked(VOCAB, torch.float32, padded_vocab_size=13, **SHAPE))
    write_head(tmp_path, oracle, Layout("specforge", ids=(0, 2, 4), written=(0, 3, 12)), dtype=torch.float32)
    native, eager = (load_head(tmp_path, oracle, backend=backend) for backend in ("native", "eager"))
    assert native.num_written == eager.num_written == 2
    ours, theirs = (played(head, [6], 6).logits[0] for head in (native, eager))
    assert ours.shape == theirs.shape == (6, VOCAB)
    assert torch.allclose(ours, theirs, 1e-4, 1e-4)


def test_columns_of_ids_that_pad_the_vocabulary_are_cut_off(tmp_path):
    oracle = NativeTransformer(tiny_unpacked(VOCAB, torch.float32, padded_vocab_size=80, **SHAPE))
    written = (0, 3, 5, *range(VOCAB, 80))
    write_head(tmp_path, oracle, Layout("specforge", ids=(0, 2, 4), written=written), dtype=torch.float32)
    native, eager = (load_head(tmp_path, oracle, backend=backend) for backend in ("native", "eager"))
    shape = native.native.struct
    assert (native.num_written, shape.written, shape.head.columns) == (3, 3, 32)
    ours, theirs = (played(head, [6], 6).logits[0] for head in (native, eager))
    assert torch.allclose(ours, theirs, 1e-4, 1e-4)


def test_what_cannot_be_is_refused(tmp_path):
    oracle = tiny_transformer(VOCAB, torch.float32, **SHAPE)
    write_head(tmp_path, oracle, FEW, dtype=torch.float32)
    with pytest.raises(ValueError, match="backend 'native' computes beside an oracle of that"):
        load_head(tmp_path, oracle, backend="native")
    with pytest.raises(ValueError, match="backend is 'compiled'"):
        load_head(tmp_path, oracle, backend="compiled")
    with pytest.raises(ValueError, match="backend 'graphed' computes beside an oracle of that"):
        load_head(tmp_path, oracle, backend="graphed")
    with pytest.raises(ValueError, match="weights is 'int3'"):
        load_head(tmp_path, oracle, weights="int3")
    assert isinstance(load_head(tmp_path, oracle), Eagle3Head)
