"""The cache: committing, rolling back and reusing rows, alone and under a model."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.cache import FeatureCache, KVCache, PagedCache, PagedKVCache, SlotCache, check_fits, slot_cache
from tests.support.backends import agree
from tests.support.models.scoring import append, path_to, random_tree
from tests.support.models.tiny_models import small_model


def contiguous_cache(rows: int = 3, capacity: int = 32, max_bytes: int | None = None) -> KVCache:
    return KVCache((rows, capacity), 0, 1, torch.int64, torch.device("cpu"), max_bytes)


def paged_cache(rows: int = 3, capacity: int = 32, max_bytes: int | None = None) -> PagedKVCache:
    return PagedKVCache.alone((), (), rows, capacity, torch.int64, torch.device("cpu"), max_bytes)


every_layout = pytest.mark.parametrize("id_cache", [contiguous_cache, paged_cache])


def held(cache: SlotCache, row: int, first: int, end: int) -> tuple:
    """Return where some slots of a row lie in the payload."""
    slots = np.arange(first, end)
    return (cache.lines(row, slots),) if isinstance(cache, PagedKVCache) else (row, slots)


def write(cache: SlotCache, rows: np.ndarray, nodes: torch.Tensor) -> None:
    start = cache.reserve(rows, nodes.shape[1])
    for row, first, values in zip(rows, start, nodes, strict=True):
        cache.payload[held(cache, row, first, first + len(values))] = values


@every_layout
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_commit_keeps_paths_and_touches_no_neighbour(id_cache, data):
    cache, kept = id_cache(rows=3, capacity=64), {row: [] for row in range(3)}
    counter = 0
    for _ in range(data.draw(st.integers(1, 4))):
        rows = np.array(sorted(data.draw(st.sets(st.integers(0, 2), min_size=1))))
        width = data.draw(st.integers(1, 9))
        nodes = torch.arange(counter, counter + len(rows) * width).view(len(rows), width)
        counter += nodes.numel()
        write(cache, rows, nodes)
        keep = np.array([data.draw(st.integers(0, width)) for _ in rows])
        path = torch.stack([torch.tensor(data.draw(st.permutations(range(width)))) for _ in rows])
        for b, count in enumerate(keep):
            path[b, :count] = path[b, :count].sort().values
            kept[int(rows[b])] += nodes[b, path[b, :count]].tolist()
        cache.commit(rows, path, keep)
    for row, ids in kept.items():
        assert cache.lengths[row] == len(ids)
        assert cache.payload[held(cache, row, 0, len(ids))].tolist() == ids


@every_layout
def test_chain_commits_and_truncation_move_no_memory(id_cache, monkeypatch):
    cache, rows = id_cache(), np.array([0, 2])
    write(cache, rows, torch.tensor([[1, 2, 3], [4, 5, 6]]))
    # A copy of each slot onto itself would leave the contents as they are.
    monkeypatch.setattr(cache, "_gather", lambda *_: pytest.fail("slots were moved"))
    before = cache.payload.clone()
    cache.commit(rows, None, np.array([3, 1]))
    assert cache.lengths.tolist() == [3, 0, 1]
    cache.truncate(rows, np.array([1, 1]))
    assert cache.lengths.tolist() == [1, 0, 1]
    assert torch.equal(cache.payload, before)


@every_layout
def test_a_tree_near_the_end_of_the_capacity_commits(id_cache):
    cache, rows = id_cache(rows=1, capacity=6), np.array([0])
    write(cache, rows, torch.tensor([[1, 2]]))
    cache.commit(rows, None, np.array([2]))
    write(cache, rows, torch.tensor([[3, 9, 4, 5]]))
    cache.commit(rows, torch.tensor([[0, 2, 3, 1]]), np.array([3]))
    assert cache.payload[held(cache, 0, 0, 5)].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda cache: cache.reserve(np.array([1]), 33), "row 1 .* capacity is 32"),
        (lambda cache: cache.reserve(np.array([1]), 3, first=2), "first=2 .* score them before the others"),
        (lambda cache: cache.truncate(np.array([0]), np.array([1])), "cannot cut"),
        (lambda cache: cache.truncate(np.array([0]), np.array([-1])), "cannot cut"),
        (lambda cache: cache.commit(np.array([0]), None, np.array([1])), "never scored"),
        (lambda cache: contiguous_cache(max_bytes=3 * 32 * 8 - 1), "max_cache_bytes"),
        (lambda cache: paged_cache(max_bytes=3 * 32 * 8 - 1), "max_cache_bytes"),
    ],
)
@every_layout
def test_misuse_is_refused(id_cache, act, message):
    with pytest.raises(ValueError, match=message):
        act(id_cache())


def test_what_torch_keeps_of_earlier_caches_counts_as_free_on_a_device(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 850)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 50)
    check_fits(450, 3, 32, None, torch.device("cuda"))
    with pytest.raises(ValueError, match=r"takes 451 bytes, more than max_cache_bytes = 450: lower batch_size"):
        check_fits(451, 3, 32, None, torch.device("cuda"))


@pytest.mark.parametrize(("limit", "free"), [("1000", 1000 - 600 + 150), ("max", None)])
def test_no_more_is_free_than_a_container_leaves(limit, free, tmp_path, monkeypatch):
    files = {"limit": limit, "used": "600", "stat": "anon 400\ninactive_file 150"}
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    own = (*(tmp_path / name for name in files), "inactive_file")
    monkeypatch.setattr(slot_cache, "CONTAINERS", ((tmp_path / "absent", *own[1:]), own))
    found = slot_cache.free_memory(torch.device("cpu"))
    assert found == free or (free is None and found > 2**20)


def test_a_system_that_does_not_tell_its_memory_has_no_limit(monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: False)
    monkeypatch.delattr(os, "sysconf")
    assert slot_cache.free_memory(torch.device("cpu")) == sys.maxsize


def test_bytes_follow_the_formula_and_lengths_are_read_only(any_pack):
    model = any_pack(small_model(head_dim=16))
    cache = model.new_cache(3, 128)
    assert cache.bytes == 2 * 2 * 2 * 16 * 4 * 3 * 128
    with pytest.raises(ValueError, match="read-only"):
        cache.lengths[0] = 1


def spoil(cache: SlotCache, row: int, slots: int) -> None:
    """Fill the pages of the first slots of a row with NaN."""
    if isinstance(cache, KVCache):
        cache.payload[:, :, row, :, :slots] = float("nan")
    elif isinstance(cache, PagedKVCache):
        cache.payload[:, :, :, cache.lines(row, np.arange(slots))] = float("nan")
    else:
        for tensor in cache.tensors:
            tensor[:, :, cache.pages[row, : -(-slots // 16)]] = float("nan")


def scatter_pages(cache: PagedCache, generator: np.random.Generator) -> None:
    """Give the rows of an empty cache each other's pages, in any order."""
    cache.pages[:] = generator.permutation(cache.pages.ravel()).reshape(cache.pages.shape)


@pytest.mark.parametrize("window", [None, 21])
def test_it_does_not_matter_which_pages_a_row_has(window, any_pack):
    model = any_pack(small_model(num_heads=4, num_kv_heads=2, sliding_window=window))
    plain, scattered = (model.new_cache(3, 128) for _ in range(2))
    if not isinstance(scattered, PagedCache):
        pytest.skip("its rows are no tables of pages")
    scatter_pages(scattered, np.random.default_rng(0))
    generator, rows, size = torch.Generator().manual_seed(1), np.array([2, 0]), 9
    for row, count in ((2, 75), (0, 20)):
        ids = torch.randint(23, (count,), generator=generator)
        first, second = (append(model, cache, row, ids, width=30) for cache in (plain, scattered))
        assert agree(model, second, first)
    tokens, parents = torch.randint(23, (2, size), generator=generator), random_tree(2, size, generator)
    nodes = torch.tensor([size, size])
    first, second = (model.score(tokens, parents, nodes, cache, rows).logits for cache in (plain, scattered))
    assert agree(model, second, first)
    own = path_to(parents[0], size - 1)
    for cache in (plain, scattered):
        model.score(tokens[:1], parents[:1], torch.tensor([size]), cache, rows[:1])
        cache.commit(rows[:1], torch.tensor([own]), np.array([len(own)]))
    first, second = (append(model, cache, 2, tokens[1]) for cache in (plain, scattered))
    assert agree(model, second, first)


def test_nothing_of_a_predecessor_reaches_the_next_occupant(any_pack):
    model = any_pack(small_model())
    ids = torch.randint(23, (20,), generator=torch.Generator().manual_seed(0))
    expected = append(model, model.new_cache(1, 64), 0, ids)
    cache = model.new_cache(2, 64)
    append(model, cache, 0, torch.randint(23, (50,)))
    neighbour = append(model, cache, 1, ids[:5])
    spoil(cache, 0, 50)
    cache.reset(np.array([0]))
    assert agree(model, append(model, cache, 0, ids), expected)
    cache.truncate(np.array([1]), np.array([0]))
    assert agree(model, append(model, cache, 1, ids[:5]), neighbour)


def test_a_row_that_was_reset_knows_no_features() -> None:
    cache, row = FeatureCache((1,), (1,), 2, 4, torch.float32, torch.device("cpu"), 1), np.array([0])
    cache.put(row, np.array([0]), np.array([2]), torch.ones(1, 2, 1))
    cache.reset(row)
    with pytest.raises(ValueError, match="leave a gap"):
        cache.put(row, np.array([1]), np.array([1]), torch.ones(1, 1, 1))
    at, first = torch.tensor([0]), torch.tensor([[0]])
    cache.guess(row, at, first, torch.full((1, 1, 1), 3.0))
    assert cache.read(at, first).item() == 3.0


def test_a_row_takes_a_feature_for_each_slot_and_one_more():
    cache, row = FeatureCache((1,), (1,), 2, 4, torch.float32, torch.device("cpu"), 1), np.array([1])
    cache.put(row, np.array([0]), np.array([5]), torch.arange(5.0).view(1, 5, 1))
    assert cache.last(row).item() == 4.0
    with pytest.raises(ValueError, match=r"are more than the 5 of a row"):
        cache.put(row, np.array([5]), np.array([1]), torch.ones(1, 1, 1))
